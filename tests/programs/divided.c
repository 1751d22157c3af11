/* The last rank never leaves a computation, and all others wait for it in a barrier. */
#include <mpi.h>
#include <unistd.h>

__attribute__((noinline)) void compute(void) {
    for (;;)
        usleep(1000);
}

__attribute__((noinline)) void exchange(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1)
        compute();
    exchange();
    return MPI_Finalize();
}
