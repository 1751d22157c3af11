/* abort RANK CODE [FILE]: that rank calls MPI_Abort while the others wait for it, once the file is there if one is named. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == atoi(argv[1])) {
        puts("aborting");
        fflush(stdout);
        while (argc > 3 && access(argv[3], F_OK) != 0)
            usleep(10000);
        MPI_Abort(MPI_COMM_WORLD, atoi(argv[2]));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
