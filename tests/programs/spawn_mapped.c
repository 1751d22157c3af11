/* spawn_mapped RANKS KEY VALUE: rank 0 spawns so many children with this hint; each says where it is. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Comm parent, inter;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        printf("child %d on node %s\n", rank, getenv("LATTICE_NODE"));
        inter = parent;
    } else {
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, argv[2], argv[3]);
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, atoi(argv[1]), info, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
        MPI_Info_free(&info);
    }
    /* Ranks are not sure to have met when a spawn returns; who leaves before breaks the others' connection. */
    MPI_Barrier(inter);
    MPI_Comm_disconnect(&inter);
    return MPI_Finalize();
}
