/* Adds ranks up, and then is killed if it has an argument: as a program that is to be started again. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s: the sum over %d ranks is %s\n", argc > 1 ? argv[1] : "last", size, sum == size * (size - 1) / 2 ? "right" : "wrong");
        fflush(stdout);
    }
    if (argc > 1) {
        /* What others still want of this one is on its way. */
        MPI_Barrier(MPI_COMM_WORLD);
        usleep(200000);
        raise(SIGKILL);
    }
    return MPI_Finalize();
}
