/* Ranks that share a node find each other, and write into each other's memory. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size, unit, *mine, *next;
    MPI_Aint length;
    MPI_Comm node;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    MPI_Win_allocate_shared(sizeof(int), sizeof(int), MPI_INFO_NULL, node, &mine, &window);
    MPI_Win_fence(0, window);
    MPI_Win_shared_query(window, (rank + 1) % size, &length, &unit, &next);
    *next = rank;
    MPI_Win_fence(0, window);
    printf("rank %d of %d on its node heard of %d\n", rank, size, *mine);
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
    return MPI_Finalize();
}
