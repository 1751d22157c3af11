/* Rank 0 runs this program once more while it is in MPI, as scripts do by system(). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && argc == 1) {
        char command[4096];
        snprintf(command, sizeof command, "'%s' child", argv[0]);
        if (system(command) != 0)
            return 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
