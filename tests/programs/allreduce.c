/* All ranks add up long vectors, and each checks the sum. */
#include <mpi.h>
#include <stdio.h>

enum { LENGTH = 20000 };

int main(int argc, char **argv) {
    static double mine[LENGTH], sum[LENGTH];
    int rank, size, wrong = 0, all_wrong;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < LENGTH; i++)
        mine[i] = rank + i;
    MPI_Allreduce(mine, sum, LENGTH, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < LENGTH; i++)
        wrong += sum[i] != size * (size - 1) / 2.0 + (double)i * size;
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, %d wrong sums\n", size, all_wrong);
    return MPI_Finalize();
}
