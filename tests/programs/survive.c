/* survive RANK [wait]: that rank is killed in the middle, by itself or by others; the others find out, go on without it in a communicator of their own, and finalize. */
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The communicator of those that are left. */
static MPI_Comm left(int victim) {
    MPI_Comm comm;
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
    /* User-level failure mitigation: somebody's receive fails, who revokes the communicator for all; the others' barriers fail then. */
    int value, agreed = 1;
    if (MPI_Recv(&value, 1, MPI_INT, victim, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        exit(3);
    MPIX_Comm_revoke(MPI_COMM_WORLD);
    MPIX_Comm_shrink(MPI_COMM_WORLD, &comm);
    if (MPIX_Comm_agree(comm, &agreed) != MPI_SUCCESS || !agreed)
        exit(4);
#else
    MPI_Group world, dead, living;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 50000000
    /* MPICH learns of the dead from its process manager; its MPIX_Comm_shrink is not implemented in ch4. */
    for (int size = 0; size == 0; usleep(10000)) {
        MPIX_Comm_get_failed(MPI_COMM_WORLD, &dead);
        MPI_Group_size(dead, &size);
    }
#else
    MPI_Group_incl(world, 1, &victim, &dead);
#endif
    MPI_Group_difference(world, dead, &living);
    MPI_Comm_create_group(MPI_COMM_WORLD, living, 7, &comm);
#endif
    return comm;
}

int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    /* Open MPI 5 writes to the sockets of the dead, now and then before it knows. */
    signal(SIGPIPE, SIG_IGN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == atoi(argv[1])) {
        puts("dying");
        fflush(stdout);
        if (argc > 2)
            pause();
        raise(SIGKILL);
    }
    MPI_Comm comm = left(atoi(argv[1]));
    MPI_Comm_size(comm, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    printf("rank %d is one of %d, whose sum is %d\n", rank, size, sum);
    fflush(stdout);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
