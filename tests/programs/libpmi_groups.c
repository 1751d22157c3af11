/* Barriers of groups: pairs of ranks that bring values, arguments that cannot be, and threads whose barriers end in no order of their own. */
#include <pmi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static int rank, size, wrong;
static volatile int refused;
static char space[256];

static void check(int right, const char *what) {
    if (!right) {
        wrong++;
        printf("rank %d: %s\n", rank, what);
    }
}

static void put(int step) {
    char key[64], value[64];
    snprintf(key, sizeof key, "of-%d", rank);
    snprintf(value, sizeof value, "step-%d-of-%d", step, rank);
    check(PMI_KVS_Put(space, key, value) == PMI_SUCCESS && PMI_KVS_Commit(space) == PMI_SUCCESS, "put");
}

static void get(int step, int other) {
    char key[64], value[64], expected[64];
    snprintf(key, sizeof key, "of-%d", other);
    snprintf(expected, sizeof expected, "step-%d-of-%d", step, other);
    if (PMI_KVS_Get(space, key, value, sizeof value) != PMI_SUCCESS || strcmp(value, expected)) {
        wrong++;
        printf("rank %d: %s instead of %s\n", rank, value, expected);
    }
}

/* The barrier of a rank and the next one in the circle of ranks. */
static int of_neighbours(int first) {
    int pair[2] = {(first + 1) % size, first};
    char tag[16];
    snprintf(tag, sizeof tag, "circle-%d", first);
    return PMI_Barrier_group(pair, 2, tag);
}

static void *next(void *unused) {
    (void)unused;
    check(of_neighbours(rank) == PMI_SUCCESS, "barrier with the next rank");
    return NULL;
}

static void *meet(void *tag) {
    for (int round = 0; round < 50; round++)
        check(PMI_Barrier_group(PMI_GROUP_WORLD, 0, tag) == PMI_SUCCESS, "barrier of a thread");
    return NULL;
}

static void *hold(void *unused) {
    static const int first_two[2] = {0, 1};
    (void)unused;
    int code;
    while ((code = PMI_Barrier_group(first_two, 2, "held")) == PMI_FAIL)
        refused = 1;
    check(code == PMI_SUCCESS, "barrier that is held");
    return NULL;
}

int main(void) {
    int spawned, own, nobody[] = {0}, negative[] = {-1}, absent[2];
    if (PMI_Init(&spawned) || PMI_Get_rank(&rank) || PMI_Get_size(&size) || PMI_KVS_Get_my_name(space, sizeof space))
        return 2;
    own = absent[0] = rank;
    absent[1] = size;
    if (PMI_Barrier_group(PMI_GROUP_SELF, 0, NULL) != PMI_SUCCESS) {
        printf("rank %d of %d: no barriers of groups, %d\n", rank, size, PMI_Barrier_group(&own, 1, "tag"));
        return PMI_Finalize();
    }
    check(PMI_Barrier_group(nobody, 0, NULL) == PMI_ERR_INVALID_ARG, "no ranks");
    check(PMI_Barrier_group(negative, 1, NULL) == PMI_ERR_INVALID_ARG, "a negative rank");
    check(PMI_Barrier_group(absent, 2, NULL) == PMI_FAIL, "a rank that is not there");
    check(rank == 0 || PMI_Barrier_group(nobody, 1, NULL) == PMI_FAIL, "a group of others");
    check(PMI_Barrier_group(&own, 1, "own") == PMI_SUCCESS, "a group of one");

    /* Values that a fence of all has brought are replaced. */
    put(0);
    check(PMI_Barrier_group(PMI_GROUP_WORLD, 0, NULL) == PMI_SUCCESS, "barrier of all");
    get(0, (rank + 1) % size);
    PMI_Barrier();
    put(1);
    check(PMI_Barrier_group(PMI_GROUP_NODE, 0, NULL) == PMI_SUCCESS, "barrier of the node");
    put(2);
    int mate = rank ^ 1, pair[2] = {rank, mate};
    if (mate < size) {
        check(PMI_Barrier_group(pair, 2, "pair") == PMI_SUCCESS, "barrier of a pair");
        get(2, mate);
    }
    PMI_Barrier();

    /* Each rank waits for both neighbours at the same time, but for the last one, which begins the chain: taking turns, all would wait. */
    if (size > 2) {
        pthread_t thread;
        if (rank < size - 1) {
            pthread_create(&thread, NULL, next, NULL);
            if (rank == 0)
                check(of_neighbours(size - 1) == PMI_SUCCESS, "barrier with the last rank");
            pthread_join(thread, NULL);
        }
        if (rank == size - 1)
            next(NULL);
        if (rank > 0)
            check(of_neighbours(rank - 1) == PMI_SUCCESS, "barrier with the rank before");
    }

    /* Threads of all ranks meet by their tags, in whatever order, and values are got meanwhile. */
    static char tags[4][8] = {"north", "east", "south", "west"};
    pthread_t threads[4];
    for (int index = 0; index < 4; index++)
        pthread_create(&threads[index], NULL, meet, tags[(index + rank) % 4]);
    for (int round = 0; round < 50; round++)
        get(2, (rank + round) % size);
    for (int index = 0; index < 4; index++)
        pthread_join(threads[index], NULL);

    /* A tag is used by one thread at a time: of two, one is refused until the other has left. */
    if (size > 1) {
        if (rank == 0) {
            for (int index = 0; index < 2; index++)
                pthread_create(&threads[index], NULL, hold, NULL);
            while (!refused)
                sched_yield();
            check(PMI_Barrier_group(PMI_GROUP_WORLD, 0, "told") == PMI_SUCCESS, "barrier beside it");
            for (int index = 0; index < 2; index++)
                pthread_join(threads[index], NULL);
        } else {
            check(PMI_Barrier_group(PMI_GROUP_WORLD, 0, "told") == PMI_SUCCESS, "barrier before it");
            for (int round = 0; rank == 1 && round < 2; round++)
                hold(NULL);
        }
    }
    printf("rank %d of %d: %d wrong\n", rank, size, wrong);
    return PMI_Finalize();
}
