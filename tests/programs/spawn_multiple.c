/* Spawns two programs as one job: one child of the first, two of the second. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    MPI_Comm parent, inter, merged;
    int rank, size, *appnum, found, sum, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    int is_child = parent != MPI_COMM_NULL;
    inter = parent;
    if (!is_child) {
        char *programs[] = {argv[0], argv[0]};
        char *first[] = {"first", NULL}, *second[] = {"second", NULL}, **arguments[] = {first, second};
        int counts[] = {1, 2};
        MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
        MPI_Comm_spawn_multiple(2, programs, arguments, counts, infos, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
    }
    MPI_Intercomm_merge(inter, is_child, &merged);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &found);
    if (is_child)
        printf("child %d of %d: %s, appnum %d, %d together\n", rank, size, argv[1], found ? *appnum : -1, sum);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&inter);
    return MPI_Finalize();
}
