/*
 * What a client library of PMI-1 or PMI-2 costs: to load, to start, and for each get.
 *
 *     cc -O2 -o client_library benches/client_library.c
 *     lattice launch -n 4 ./client_library PREFIX/lib/lattice/libpmi.so.0 [keys of each rank]
 *
 * Another library of the same functions shows that one, such as Slurm's `libpmi2.so.0`; the same line under `mpiexec` or `srun` shows
 * another launcher. Rank 0 prints; times are in microseconds.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static void *library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        puts(dlerror());
        exit(3);
    }
    return found;
}

/* The library's functions, which return 0 for success. */
static int (*put_one)(const char *, const char *, const char *), (*get_one)(const char *, const char *, char *, int);
static int (*put_two)(const char *, const char *), (*get_two)(const char *, int, const char *, char *, int, int *);
static int (*fence_two)(void);
static char name[256]; /* of the key-value space, or of the job */

static int start_one(int *rank, int *size) {
    int spawned, failed = ((int (*)(int *))function("PMI_Init"))(&spawned) != 0;
    put_one = function("PMI_KVS_Put");
    get_one = function("PMI_KVS_Get");
    return failed + (((int (*)(int *))function("PMI_Get_rank"))(rank) != 0) + (((int (*)(int *))function("PMI_Get_size"))(size) != 0) +
           (((int (*)(char *, int))function("PMI_KVS_Get_my_name"))(name, sizeof name) != 0);
}

static int start_two(int *rank, int *size) {
    int spawned, number, failed = ((int (*)(int *, int *, int *, int *))function("PMI2_Init"))(&spawned, size, rank, &number) != 0;
    put_two = function("PMI2_KVS_Put");
    get_two = function("PMI2_KVS_Get");
    fence_two = function("PMI2_KVS_Fence");
    return failed + (((int (*)(char *, int))function("PMI2_Job_GetId"))(name, sizeof name) != 0);
}

static int put(const char *key, const char *value) {
    return (put_two ? put_two(key, value) : put_one(name, key, value)) != 0;
}

static int get(const char *key, char *value, int room) {
    int length;
    return (get_two ? get_two(name, -1, key, value, room, &length) : get_one(name, key, value, room)) != 0;
}

static int fence(void) {
    if (fence_two)
        return fence_two() != 0;
    return (((int (*)(const char *))function("PMI_KVS_Commit"))(name) != 0) + (((int (*)(void))function("PMI_Barrier"))() != 0);
}

int main(int argc, char **argv) {
    int keys = argc > 2 ? atoi(argv[2]) : 64, rank, size, failed;
    char key[64], value[1024];
    double loading = now();
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    double loaded = now();
    if (!library)
        return 2;
    int is_two = dlsym(library, "PMI2_Init") != NULL;

    double starting = now();
    failed = is_two ? start_two(&rank, &size) : start_one(&rank, &size);
    double started = now();
    memset(value, 'v', 128);
    value[128] = '\0';
    for (int i = 0; i < keys; i++) {
        snprintf(key, sizeof key, "card-%d-%d", rank, i);
        failed += put(key, value);
    }
    failed += fence();

    int gets = size * keys;
    double *times = malloc(gets * sizeof *times), begun = now();
    unsigned random = rank + 1;
    for (int i = 0; i < gets; i++) {
        random = random * 1103515245 + 12345;
        snprintf(key, sizeof key, "card-%d-%d", (random >> 8) % size, (random >> 16) % keys);
        double asked = now();
        failed += get(key, value, sizeof value);
        times[i] = now() - asked;
    }
    double all = now() - begun;
    failed += fence();
    qsort(times, gets, sizeof *times, by_size);
    if (rank == 0)
        printf("load %.0f, start %.0f, get %.2f at least, %.2f median, %.2f at the 99th percentile, %d gets %.0f, %d failed\n",
               loaded - loading, started - starting, times[0], times[gets / 2], times[gets * 99 / 100], gets, all, failed);
    return ((int (*)(void))function(is_two ? "PMI2_Finalize" : "PMI_Finalize"))();
}
