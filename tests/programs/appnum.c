/* Every rank says which program of the job it runs, and how large the universe is. */
#include <mpi.h>
#include <stdio.h>

static void print_attribute(int rank, const char *name, int key) {
    int *value, found;
    MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &found);
    if (found)
        printf("rank %d: %s %d\n", rank, name, *value);
    else
        printf("rank %d: %s unset\n", rank, name);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    print_attribute(rank, "appnum", MPI_APPNUM);
    print_attribute(rank, "universe size", MPI_UNIVERSE_SIZE);
    return MPI_Finalize();
}
