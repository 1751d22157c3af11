/* exit_after_finalize RANK CODE: all finalize, then that rank returns CODE and the others 0. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Finalize();
    return rank == atoi(argv[1]) ? atoi(argv[2]) : 0;
}
