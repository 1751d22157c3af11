/* Ranks put values by PMI-1 and read everybody's in the memory of their job, without a message.
 *
 * $ cc -o job_memory examples/job_memory.c
 * $ lattice launch -n 4 ./job_memory 3 100          (3 rounds; in each, every rank puts 100 keys and a value of 60,000 bytes)
 * rank 1 of 4: node 0 (here, alone), local rank 1 of 4, node rank 1, CPUs any, PMI_process_mapping=(vector,(0,1,4)), 2424 values read, 3 fences
 *
 * All that is said to the server is init, get_my_kvsname, put, barrier_in and finalize. */
#include "job_memory.h"
#include <stdio.h>

static FILE *server;
static char line[70000];

/* Says something to the server; its answer is in `line`. */
static void ask(const char *request) {
    if (fputs(request, server) < 0 || fputc('\n', server) < 0 || fflush(server) || !fgets(line, sizeof line, server)) {
        fprintf(stderr, "no answer to %.40s\n", request);
        exit(1);
    }
}

/* The value that a rank puts in a round under a number: as long as it is said to be. */
static const char *value_of(int rank, int round, int number, int length) {
    static char value[60001];
    int word = snprintf(value, sizeof value, "%d.%d.%d,", rank, round, number);
    for (int at = word; at < length; at++)
        value[at] = value[at - word];
    value[length > word ? length : word] = 0;
    return value;
}

static void put(const char *kvs, int rank, int round, int number, int length) {
    static char request[70000];
    snprintf(request, sizeof request, "cmd=put kvsname=%s key=k-%d-%d-%d value=%s", kvs, round, rank, number,
             value_of(rank, round, number, length));
    ask(request);
}

/* Reads one value in the memory; a wrong one ends the job. */
static int read_one(const struct job_memory *job, int rank, int round, int number, int length) {
    char key[64];
    uint32_t seen;
    snprintf(key, sizeof key, "k-%d-%d-%d", round, rank, number);
    const char *value = job_get(job, key, &seen), *expected = value_of(rank, round, number, length);
    if (!value || seen != strlen(expected) || strcmp(value, expected)) {
        fprintf(stderr, "%s is %.40s\n", key, value ? value : "not there");
        exit(1);
    }
    return 1;
}

/* A number in the environment, which a launcher that serves PMI-1 at a descriptor sets. */
static int variable(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set: start this by lattice launch, without --pmi-port and --pmi=pmix\n", name);
        exit(1);
    }
    return atoi(value);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1, keys = argc > 2 ? atoi(argv[2]) : 1, values = 0;
    int rank = variable("PMI_RANK"), size = variable("PMI_SIZE");
    struct job_memory job;
    char kvs[300] = "";
    server = fdopen(variable("PMI_FD"), "r+");
    if (!server) {
        perror("PMI_FD");
        return 1;
    }
    setvbuf(server, NULL, _IOFBF, sizeof line);
    ask("cmd=init pmi_version=1 pmi_subversion=1");
    ask("cmd=get_my_kvsname");
    sscanf(strstr(line, "kvsname=") ? strstr(line, "kvsname=") : line, "kvsname=%255s", kvs);
    if (!job_open(&job, kvs)) {
        printf("rank %d of %d: no job memory\n", rank, size);
        ask("cmd=finalize");
        return 0;
    }
    for (int round = 0; round < rounds; round++) {
        for (int number = 0; number < keys; number++)
            put(kvs, rank, round, number, 20);
        put(kvs, rank, round, keys, 60000);
        ask("cmd=barrier_in");
        for (int earlier = 0; earlier <= round; earlier++)
            for (int other = 0; other < size; other++) {
                for (int number = 0; number < keys; number++)
                    values += read_one(&job, other, earlier, number, 20);
                values += read_one(&job, other, earlier, keys, 60000);
            }
    }
    uint64_t me = job_entry(&job, 64, (uint32_t)rank), node = job_entry(&job, 80, job_number(&job, me));
    const char *cpus = job_text(&job, me + 16), *address = job_text(&job, node + 8);
    printf("rank %d of %u: node %u (%s, %s), local rank %u of %u, node rank %u, CPUs %s, %s=%s, %d values read, %u fences\n", rank,
           job_number(&job, 32), job_number(&job, me), job_text(&job, node), address ? address : "alone", job_number(&job, me + 4),
           job_number(&job, 44), job_number(&job, me + 8), cpus ? cpus : "any", job_text(&job, job_entry(&job, 96, 0)),
           job_text(&job, job_entry(&job, 96, 0) + 8), values, (unsigned)job_word(&job, JOB_FENCES));
    ask("cmd=finalize");
    return 0;
}
