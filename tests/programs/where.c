/* Every rank prints its node and the number of its program. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char node[256] = "";
    int *appnum, found;
    MPI_Init(&argc, &argv);
    gethostname(node, sizeof node - 1);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &found);
    printf("%s:%d\n", node, found ? *appnum : -1);
    return MPI_Finalize();
}
