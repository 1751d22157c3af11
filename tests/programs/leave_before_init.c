/* leave_before_init RANK CODE: that rank never calls MPI_Init; the others do, and wait for it in there. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    const char *rank = getenv("PMI_RANK");
    if (rank != NULL && atoi(rank) == atoi(argv[1])) {
        puts("leaving");
        return atoi(argv[2]);
    }
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
