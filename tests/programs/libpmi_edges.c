/* Codes and lengths of libpmi, one rank at a time: NULL, hostile numbers, buffers of every size, threads, a fork, a second life. */
#include "edges.h"
#include <errno.h>
#include <limits.h>
#include <slurm/pmi.h>

static char name[256];
static int rank, size;

static void before(void) {
    int flag = -7;
    char id[8];
    EXPECT(PMI_Initialized(&flag), PMI_SUCCESS);
    EXPECT(flag, 0);
    EXPECT(PMI_Initialized(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Init(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_rank(&flag), PMI_ERR_INIT);
    EXPECT(PMI_Barrier(), PMI_ERR_INIT);
    EXPECT(PMI_KVS_Put("a", "b", "c"), PMI_ERR_INIT);
    EXPECT(PMI_KVS_Get_my_name(id, sizeof id), PMI_ERR_INIT);
    EXPECT(PMI_Finalize(), PMI_SUCCESS);
}

static void nulls(void) {
    int number = 0, numbers[2];
    char text[8];
    EXPECT(PMI_Get_size(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_rank(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_universe_size(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_appnum(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_clique_size(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_clique_ranks(NULL, 4), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_clique_ranks(numbers, 0), PMI_ERR_INVALID_LENGTH);
    EXPECT(PMI_Get_clique_ranks(numbers, INT_MIN), PMI_ERR_INVALID_LENGTH);
    EXPECT(PMI_Get_id(NULL, 8), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_kvs_domain_id(NULL, 8), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Get_id_length_max(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Get_my_name(NULL, 8), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Get_my_name(text, -1), PMI_ERR_INVALID_LENGTH);
    EXPECT(PMI_KVS_Get_key_length_max(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Create(NULL, 8), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Destroy(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Commit(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_KVS_Put(NULL, "k", "v"), PMI_ERR_INVALID_KVS);
    EXPECT(PMI_KVS_Put("nonesuch", "k", "v"), PMI_ERR_INVALID_KVS);
    EXPECT(PMI_KVS_Put(name, NULL, "v"), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Put(name, "", "v"), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Put(name, "two\nlines", "v"), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Put(name, "\xff\xfe", "v"), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Put(name, "k", NULL), PMI_ERR_INVALID_VAL);
    EXPECT(PMI_KVS_Put(name, "k", "two\nlines"), PMI_ERR_INVALID_VAL);
    EXPECT(PMI_KVS_Get(NULL, "k", text, 8), PMI_ERR_INVALID_KVS);
    EXPECT(PMI_KVS_Get(name, NULL, text, 8), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Get(name, "k", NULL, 8), PMI_ERR_INVALID_VAL);
    EXPECT(PMI_KVS_Get(name, "absent", text, 8), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Get(name, "absent", text, 0), PMI_ERR_INVALID_LENGTH);
    EXPECT(PMI_KVS_Iter_first(NULL, text, 8, text, 8), PMI_ERR_INVALID_KVS);
    EXPECT(PMI_KVS_Iter_first(name, NULL, 8, text, 8), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Iter_next(name, text, 8, NULL, 8), PMI_ERR_INVALID_VAL);
    EXPECT(PMI_Publish_name(NULL, "p"), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Unpublish_name(NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Lookup_name("s", NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Spawn_multiple(1, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Spawn_multiple(-1, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Free_keyvals(NULL, 1), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Free_keyvals(NULL, -1), PMI_ERR_INVALID_ARG);
    EXPECT(PMI_Free_keyvals(NULL, 0), PMI_SUCCESS);
    EXPECT(PMI_Get_options(NULL, &number), PMI_ERR_INVALID_ARG);
}

static void lengths(void) {
    int keys, values, names;
    EXPECT(PMI_KVS_Get_key_length_max(&keys), PMI_SUCCESS);
    EXPECT(PMI_KVS_Get_value_length_max(&values), PMI_SUCCESS);
    EXPECT(PMI_KVS_Get_name_length_max(&names), PMI_SUCCESS);
    EXPECT(keys == 64 && values == 1024 && names == 256, 1);
    char *key = text(keys - 1), *value = text(values - 1);
    EXPECT(PMI_KVS_Put(name, key, value), PMI_SUCCESS);
    EXPECT(PMI_KVS_Put(name, text(keys), value), PMI_ERR_INVALID_KEY);
    EXPECT(PMI_KVS_Put(name, key, text(values)), PMI_ERR_INVALID_VAL);
    EXPECT(PMI_Barrier(), PMI_SUCCESS);
    for (int room = 1; room < 40; room++) {
        char *small = buffer(room);
        EXPECT(PMI_KVS_Get(name, key, small, room), PMI_ERR_INVALID_LENGTH);
        EXPECT(small[0] == '#' && small[room - 1] == '#', 1);
        EXPECT(PMI_KVS_Get_my_name(small, room), room > (int)strlen(name) ? PMI_SUCCESS : PMI_ERR_INVALID_LENGTH);
    }
    EXPECT(PMI_KVS_Get(name, key, buffer(values - 1), values - 1), PMI_ERR_INVALID_LENGTH);
    char *whole = buffer(values);
    EXPECT(PMI_KVS_Get(name, key, whole, values), PMI_SUCCESS);
    EXPECT(strcmp(whole, value), 0);
    EXPECT(PMI_KVS_Get(name, key, buffer(60000), 60000), PMI_SUCCESS);
    int first, second;
    char *domain = buffer(names), tail;
    EXPECT(PMI_Get_kvs_domain_id(domain, names), PMI_SUCCESS);
    EXPECT(sscanf(domain, "%d.%d%c", &first, &second, &tail), 2);
    EXPECT(first >= 0 && first < 65536, 1);
}

static void options(void) {
    char *args[] = {"PMI_host=n1", "PMI_wdir=/tmp/a b", "app", "PMI_late=1"}, *line[] = {"app", "-n", "4", "-x", "-y", "z"};
    char *wrong[] = {"-n", "4", "5"};
    int parsed, size, count = 6, three = 3;
    PMI_keyval_t *pairs;
    EXPECT(PMI_Parse_option(4, args, &parsed, &pairs, &size), PMI_SUCCESS);
    EXPECT(parsed == 2 && size == 2 && !strcmp(pairs[1].key, "PMI_wdir") && !strcmp(pairs[1].val, "/tmp/a b"), 1);
    EXPECT(PMI_Free_keyvals(pairs, size), PMI_SUCCESS);
    EXPECT(PMI_Parse_option(1, args + 2, &parsed, &pairs, &size), PMI_SUCCESS);
    EXPECT(parsed == 0 && size == 0 && pairs == NULL, 1);
    EXPECT(PMI_Parse_option(0, args, &parsed, &pairs, &size), PMI_ERR_INVALID_NUM_ARGS);
    EXPECT(PMI_Parse_option(1, NULL, &parsed, &pairs, &size), PMI_ERR_INVALID_ARGS);
    EXPECT(PMI_Parse_option(1, args, NULL, &pairs, &size), PMI_ERR_INVALID_NUM_PARSED);
    EXPECT(PMI_Parse_option(1, args, &parsed, NULL, &size), PMI_ERR_INVALID_KEYVALP);
    EXPECT(PMI_Parse_option(1, args, &parsed, &pairs, NULL), PMI_ERR_INVALID_SIZE);
    EXPECT(PMI_Args_to_keyval(&count, (char *((*)[]))line, &pairs, &size), PMI_SUCCESS);
    EXPECT(size == 4 && pairs[0].key == NULL && !strcmp(pairs[0].val, "app"), 1);
    EXPECT(!strcmp(pairs[1].key, "-n") && !strcmp(pairs[1].val, "4") && pairs[2].val == NULL, 1);
    EXPECT(PMI_Free_keyvals(pairs, size), PMI_SUCCESS);
    EXPECT(PMI_Args_to_keyval(&three, (char *((*)[]))wrong, &pairs, &size), PMI_ERR_INVALID_ARG);
    int length = 4;
    char *small = buffer(4), *whole;
    EXPECT(PMI_Get_options(small, &length), PMI_ERR_NOMEM);
    EXPECT(small[3], 0);
    whole = buffer(length);
    EXPECT(PMI_Get_options(whole, &length), PMI_SUCCESS);
    EXPECT((int)strlen(whole) == length - 1, 1);
}

/* Hydra shows a rank its own puts after the next barrier, so gets are for those of the round before. */
static int round_;

static void write_pair(char *key, char *value, long thread, int round, int i) {
    snprintf(key, 64, "t-%d-%d-%ld-%d", rank, round, thread, i);
    snprintf(value, 64, "%d.%ld.%d", round, thread, i);
}

static void *puts_and_gets(void *argument) {
    long thread = (long)argument;
    char key[64], value[64], seen[64];
    for (int i = 0; i < 100; i++) {
        write_pair(key, value, thread, round_, i);
        EXPECT(PMI_KVS_Put(name, key, value), PMI_SUCCESS);
        if (round_ % 4 == 0)
            continue;
        write_pair(key, value, thread, round_ - 1, i);
        EXPECT(PMI_KVS_Get(name, key, seen, sizeof seen), PMI_SUCCESS);
        EXPECT(strcmp(seen, value), 0);
    }
    return NULL;
}

static void threads(void) {
    pthread_t ids[4];
    do {
        for (long i = 0; i < 4; i++)
            pthread_create(&ids[i], NULL, puts_and_gets, (void *)i);
        for (int i = 0; i < 4; i++)
            pthread_join(ids[i], NULL);
        EXPECT(PMI_Barrier(), PMI_SUCCESS);
    } while (++round_ % 4 != 0);
}

/* Parent and child ask in turn, and both are answered. */
static void forked(void) {
    char key[64], value[64];
    int status;
    snprintf(key, sizeof key, "child-%d", rank);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(PMI_KVS_Put(name, key, "here"), PMI_SUCCESS);
        EXPECT(PMI_KVS_Get(name, "absent", value, sizeof value), PMI_ERR_INVALID_KEY);
        fflush(stdout);
        _exit(failed);
    }
    waitpid(child, &status, 0);
    EXPECT(status, 0);
    EXPECT(PMI_Barrier(), PMI_SUCCESS);
    EXPECT(PMI_KVS_Get(name, key, value, sizeof value), PMI_SUCCESS);
    EXPECT(strcmp(value, "here"), 0);
}

int main(int argc, char **argv) {
    int spawned, lives = argc > 1 ? atoi(argv[1]) : 1;
    before();
    for (int life = 0; life < lives; life++) {
        errno = EILSEQ;
        EXPECT(PMI_Init(&spawned), PMI_SUCCESS);
        EXPECT(PMI_Init(&spawned), PMI_SUCCESS);
        EXPECT(PMI_Get_rank(&rank), PMI_SUCCESS);
        EXPECT(PMI_Get_size(&size), PMI_SUCCESS);
        EXPECT(PMI_KVS_Get_my_name(name, sizeof name), PMI_SUCCESS);
        EXPECT(errno, EILSEQ);
        nulls();
        lengths();
        options();
        threads();
        if (size > 1)
            forked();
        EXPECT(PMI_Finalize(), PMI_SUCCESS);
        EXPECT(PMI_Get_rank(&rank), PMI_ERR_INIT);
    }
    printf("rank %d of %d: %d failed\n", rank, size, failed);
    return failed != 0;
}
