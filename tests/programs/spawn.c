/* spawn COUNT: all ranks spawn so many children, merge with them, add up ones, and part. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Comm parent, inter, merged;
    int rank, size, place, sum, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    int is_child = parent != MPI_COMM_NULL;
    inter = parent;
    if (!is_child) {
        char *arguments[] = {"some", "words that belong together", NULL};
        MPI_Comm_spawn(argv[0], arguments, atoi(argv[1]), MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
    }
    MPI_Intercomm_merge(inter, is_child, &merged);
    MPI_Comm_rank(merged, &place);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
    const char *who = is_child ? "child" : "parent";
    printf("%s %d of %d: %d of %d together, the last word is '%s'\n", who, rank, size, place, sum, argv[argc - 1]);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&inter);
    return MPI_Finalize();
}
