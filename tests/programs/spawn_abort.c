/* spawn_abort CODE: a spawned rank aborts while its parents wait for it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Comm parent, inter;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    if (parent == MPI_COMM_NULL) {
        MPI_Comm_spawn(argv[0], argv + 1, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
        MPI_Barrier(inter);
    } else {
        if (rank == 1) {
            puts("aborting");
            fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
        }
        MPI_Barrier(parent);
    }
    return MPI_Finalize();
}
