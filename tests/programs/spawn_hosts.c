/* spawn_hosts DIRECTORY HOST...: rank 0 spawns a child on each host, looked for in the directory, or where this program is if that is
   "-"; each child says where it is. */
#include <libgen.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MPICH's ranks are not sure to have met when a spawn returns; who leaves before breaks the others' connection. */
static void leave(MPI_Comm inter) {
    MPI_Barrier(inter);
    MPI_Comm_disconnect(&inter);
}

int main(int argc, char **argv) {
    MPI_Comm parent, inter;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        printf("child %d on node %s\n", rank, getenv("LATTICE_NODE"));
        leave(parent);
        return MPI_Finalize();
    }
    char hosts[1024] = "";
    for (int index = 2; index < argc; index++) {
        strcat(strcat(hosts, index > 2 ? "," : ""), argv[index]);
    }
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "host", hosts);
    int is_here = strcmp(argv[1], "-") == 0;
    if (!is_here) {
        MPI_Info_set(info, "path", argv[1]);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    char *program = is_here ? argv[0] : basename(argv[0]);
    int outcome = MPI_Comm_spawn(program, MPI_ARGV_NULL, argc - 2, info, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
    if (outcome == MPI_SUCCESS) {
        leave(inter);
    } else {
        printf("the spawn fails\n");
    }
    MPI_Info_free(&info);
    return MPI_Finalize();
}
