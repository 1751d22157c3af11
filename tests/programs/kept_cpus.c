// Prints the CPUs of each rank behind MPI_Init, as the kernel has them, and whether they are those that it began with.
#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void read_cpus(char *cpus) {
    char line[4096];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) {
        sscanf(line, "Cpus_allowed_list: %4095s", cpus);
    }
    if (status) {
        fclose(status);
    }
}

int main(int argc, char **argv) {
    char before[4096] = "", behind[4096] = "";
    int rank;
    read_cpus(before);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    read_cpus(behind);
    printf("rank %d: %s%s\n", rank, behind, strcmp(before, behind) ? ", which MPI_Init changed" : "");
    MPI_Finalize();
    return 0;
}
