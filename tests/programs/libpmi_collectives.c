/* Collectives and nodes as Cray's pmi.h has them: sizes below, at and above what one value carries.
   With an argument: one rank may put nothing more, and nobody waits for it. */
#include <pmi_ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char byte_of(int rank, int index) { return (unsigned char)(rank * 31 + index * 7 + index / 256); }

static void fill(unsigned char *bytes, int rank, int length) {
    for (int index = 0; index < length; index++)
        bytes[index] = byte_of(rank, index);
}

static int wrong(const unsigned char *bytes, int rank, int length) {
    int count = 0;
    for (int index = 0; index < length; index++)
        count += bytes[index] != byte_of(rank, index);
    return count;
}

/* Puts until it is refused. */
static void put_all(void) {
    char name[256], key[32], value[1001];
    PMI_KVS_Get_my_name(name, sizeof name);
    memset(value, 'v', 1000);
    value[1000] = 0;
    for (int number = 0; number < 1000000; number++) {
        snprintf(key, sizeof key, "fill-%d", number);
        if (PMI_KVS_Put(name, key, value))
            return;
    }
}

static int without_room(int rank, int size) {
    unsigned char own[600], *all = calloc(size, sizeof own);
    fill(own, rank, sizeof own);
    if (rank == 0)
        put_all();
    int gathered = PMI_Allgather(own, all, sizeof own), told = PMI_Bcast(own, sizeof own), met = PMI_Barrier();
    printf("rank %d: %s, %s, %s\n", rank, gathered ? "gathered nothing" : "gathered", told ? "told nothing" : "told",
           met ? "met nobody" : "met");
    return PMI_Finalize();
}

int main(int argc, char **argv) {
    int spawned, rank, size, bad = 0;
    (void)argv;
    if (PMI_Init(&spawned) || PMI_Get_rank(&rank) || PMI_Get_size(&size))
        return 2;
    if (argc > 1)
        return without_room(rank, size);
    static const int lengths[] = {0, 1, 511, 512, 3000};
    for (int step = 0; step < 5; step++) {
        int length = lengths[step];
        unsigned char *own = malloc(length + 1), *all = calloc(size, length + 1);
        fill(own, rank, length);
        bad += PMI_Allgather(own, all, length) != PMI_SUCCESS;
        for (int other = 0; other < size; other++)
            bad += wrong(all + other * length, other, length);
        fill(own, rank == 0 ? 100 : rank, length);
        bad += PMI_Bcast(own, length) != PMI_SUCCESS || wrong(own, 100, length);
        free(own);
        free(all);
    }
    int *each = malloc(size * sizeof *each), total = 0, before = 0;
    for (int other = 0; other < size; other++)
        total += each[other] = other * 700;
    unsigned char *own = malloc(rank * 700 + 1), *all = malloc(total + 1);
    fill(own, rank, rank * 700);
    bad += PMI_Allgatherv(own, rank * 700, all, each) != PMI_SUCCESS;
    for (int other = 0; other < size; before += each[other++])
        bad += wrong(all + before, other, each[other]);
    bad += PMI_Allgather(own, all, -1) == PMI_SUCCESS || PMI_Allgather(NULL, all, 1) == PMI_SUCCESS ||
           PMI_Allgather(own, NULL, 1) == PMI_SUCCESS || PMI_Allgatherv(own, rank * 700 + 1, all, each) == PMI_SUCCESS;

    int near = 0, node = -1, major = -1, minor = -1, revision = -1, *nodes, absent;
    bad += PMI_Get_version_info(&major, &minor, &revision) || major < 0 || minor < 0 || revision < 0;
    bad += PMI_Get_numpes_on_smp(&near) || near < 1 || near > size;
    int *ranks = malloc(near * sizeof *ranks);
    bad += PMI_Get_pes_on_smp(ranks, near) != PMI_SUCCESS;
    bad += PMI_Get_nid(rank, &node) || PMI_Get_nidlist_ptr((void **)&nodes) || nodes[rank] != node;
    for (int index = 0; index < near; index++)
        bad += nodes[ranks[index]] != node;
    bad += PMI_Get_nid(size, &absent) == PMI_SUCCESS || PMI_Get_nid(-1, &absent) == PMI_SUCCESS;
    printf("rank %d of %d: %d near, node %d, %d wrong\n", rank, size, near, node, bad);
    return PMI_Finalize();
}
