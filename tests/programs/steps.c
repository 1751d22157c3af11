/* All ranks add up their numbers again and again, until a file is there; the first one counts the steps, and the last one exits with
 * the status that is given, if one is. Who waits for the others sleeps meanwhile: where one of them is stopped, that takes long. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_asleep(MPI_Request *request) {
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        usleep(1000);
}

int main(int argc, char **argv) {
    int rank, size, steps = 0, stop = 0;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    while (!stop) {
        int mine[2] = {rank, access(argv[1], F_OK) == 0}, sum[2];
        MPI_Iallreduce(mine, sum, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        wait_asleep(&request);
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        wait_asleep(&request);
        if (sum[0] != size * (size - 1) / 2)
            MPI_Abort(MPI_COMM_WORLD, 3);
        if (rank == 0) {
            printf("step %d\n", steps);
            fflush(stdout);
        }
        steps++;
        stop = sum[1] == size;
        usleep(10000);
    }
    printf("rank %d of %d took %s steps\n", rank, size, steps > 1 ? "some" : "no");
    MPI_Finalize();
    return argc > 2 && rank == size - 1 ? atoi(argv[2]) : 0;
}
