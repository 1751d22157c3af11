/* crash RANK: that rank dies of SIGSEGV while the others wait for it. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == atoi(argv[1])) {
        puts("crashing");
        fflush(stdout);
        /* Some transports catch it to print a backtrace. */
        signal(SIGSEGV, SIG_DFL);
        *(volatile int *)NULL = 1;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize();
}
