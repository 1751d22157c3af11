/* Two jobs that meet: one is started as `host` and publishes a port, the other as `guest` waits for its name and connects. A host
   that is given a file makes it when it can be found. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char port[MPI_MAX_PORT_NAME];
    int rank, others, one = 1, sum, is_guest = argc > 1 && !strcmp(argv[1], "guest");
    MPI_Comm inter, merged;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && !is_guest) {
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Publish_name("a bay", MPI_INFO_NULL, port);
        if (argc > 2)
            fclose(fopen(argv[2], "w"));
    }
    if (rank == 0 && is_guest) {
        /* The other job may not have come that far. */
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        while (MPI_Lookup_name("a bay", MPI_INFO_NULL, port) != MPI_SUCCESS)
            usleep(20000);
    }
    if (is_guest)
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter);
    else
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter);
    MPI_Comm_remote_size(inter, &others);
    MPI_Intercomm_merge(inter, is_guest, &merged);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
    printf("%s %d: %d on the other side, %d together\n", is_guest ? "guest" : "host", rank, others, sum);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&inter);
    if (rank == 0 && !is_guest) {
        MPI_Unpublish_name("a bay", MPI_INFO_NULL, port);
        MPI_Close_port(port);
    }
    return MPI_Finalize();
}
