/* spawn_mapped RANKS [KEY VALUE]...: rank 0 spawns so many children with these hints; each says where it is, and on which CPU if that is one.
   Rank 0 says so if it gets another number of them, or none. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* Ranks are not sure to have met when a spawn returns; who leaves before breaks the others' connection. */
static void leave(MPI_Comm inter) {
    MPI_Barrier(inter);
    MPI_Comm_disconnect(&inter);
}

static void say_where(int rank) {
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    const char *node = getenv("LATTICE_NODE");
    int cpu = 0;
    while (!CPU_ISSET(cpu, &cpus)) {
        cpu++;
    }
    if (CPU_COUNT(&cpus) == 1) {
        printf("child %d on node %s, CPU %d\n", rank, node, cpu);
    } else {
        printf("child %d on node %s\n", rank, node);
    }
}

int main(int argc, char **argv) {
    MPI_Comm parent, inter;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        say_where(rank);
        leave(parent);
        return MPI_Finalize();
    }
    MPI_Info info;
    MPI_Info_create(&info);
    for (int index = 2; index + 1 < argc; index += 2) {
        MPI_Info_set(info, argv[index], argv[index + 1]);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int asked = atoi(argv[1]), got;
    int outcome = MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, asked, info, 0, MPI_COMM_WORLD, &inter, MPI_ERRCODES_IGNORE);
    MPI_Info_free(&info);
    if (outcome != MPI_SUCCESS) {
        printf("the spawn fails\n");
        return MPI_Finalize();
    }
    MPI_Comm_remote_size(inter, &got);
    if (got != asked) {
        printf("%d children\n", got);
    }
    leave(inter);
    return MPI_Finalize();
}
