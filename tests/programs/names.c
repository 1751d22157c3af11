/* Odd ranks find even ones by a published name and connect to them, twice. Each half gets to know how many meet. */
#include <mpi.h>
#include <stdio.h>

static void print_meeting(MPI_Comm inter, int is_guest, int round) {
    MPI_Comm merged;
    int rank, hosts, one = 1, sum;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_remote_size(inter, &hosts);
    MPI_Intercomm_merge(inter, is_guest, &merged);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, merged);
    printf("round %d, rank %d: %d on the other side, %d together\n", round, rank, hosts, sum);
    MPI_Comm_free(&merged);
    MPI_Comm_disconnect(&inter);
}

int main(int argc, char **argv) {
    char port[MPI_MAX_PORT_NAME], name[32];
    MPI_Comm half, inter;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int is_guest = rank % 2, leads = rank < 2;
    MPI_Comm_split(MPI_COMM_WORLD, is_guest, rank, &half);
    for (int round = 0; round < 2; round++) {
        snprintf(name, sizeof name, "an ocean %d", round);
        if (!is_guest && leads) {
            MPI_Open_port(MPI_INFO_NULL, port);
            MPI_Publish_name(name, MPI_INFO_NULL, port);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        if (is_guest && leads)
            MPI_Lookup_name(name, MPI_INFO_NULL, port);
        if (is_guest)
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &inter);
        else
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &inter);
        print_meeting(inter, is_guest, round);
        if (!is_guest && leads) {
            MPI_Unpublish_name(name, MPI_INFO_NULL, port);
            MPI_Close_port(port);
        }
    }
    MPI_Comm_free(&half);
    return MPI_Finalize();
}
