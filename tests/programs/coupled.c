/* Rank 0 is a server that publishes where it can be met, rank 1 a client that looks for it until it is there. Two copies at a time must not
   meet each other. The server waits for the file SERVER_GATE and makes PUBLISHED, the client waits for CLIENT_GATE and makes LOOKED when it has
   looked in vain for a while. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for(const char *gate) {
    while (getenv(gate) && access(getenv(gate), F_OK))
        usleep(10000);
}

static void make(const char *file) {
    if (getenv(file))
        fclose(fopen(getenv(file), "w"));
}

int main(int argc, char **argv) {
    char port[MPI_MAX_PORT_NAME], other[64] = "";
    const char *own = getenv("COPY");
    MPI_Comm inter;
    int rank, looks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (rank == 0) {
        wait_for("SERVER_GATE");
        MPI_Open_port(MPI_INFO_NULL, port);
        if (MPI_Publish_name("a bay", MPI_INFO_NULL, port) != MPI_SUCCESS)
            printf("%s: the name is refused\n", own);
        make("PUBLISHED");
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &inter);
        MPI_Recv(other, sizeof other, MPI_CHAR, 0, 0, inter, MPI_STATUS_IGNORE);
        printf("the server of %s has the client of %s\n", own, other);
        MPI_Comm_disconnect(&inter);
        MPI_Unpublish_name("a bay", MPI_INFO_NULL, port);
        MPI_Close_port(port);
    } else {
        wait_for("CLIENT_GATE");
        while (MPI_Lookup_name("a bay", MPI_INFO_NULL, port) != MPI_SUCCESS) {
            if (++looks == 20)
                make("LOOKED");
            usleep(10000);
        }
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &inter);
        MPI_Send(own, strlen(own) + 1, MPI_CHAR, 0, 0, inter);
        MPI_Comm_disconnect(&inter);
    }
    return MPI_Finalize();
}
