/* exit_without_finalize RANK CODE: that rank leaves after MPI_Init while the others wait for it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == atoi(argv[1])) {
        puts("leaving");
        fflush(stdout);
        /* Past the exit handlers, in which some libraries finalize. */
        _exit(atoi(argv[2]));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
