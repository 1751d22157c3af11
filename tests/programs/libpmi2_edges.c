/* Codes and lengths of libpmi2: NULL, hostile numbers, buffers of every size, lists of numbers, threads, a fork, a second life. */
#include "edges.h"
#include <limits.h>
#include <slurm/pmi2.h>

static int rank, size;

static void before(void) {
    int number;
    char id[8];
    EXPECT(PMI2_Initialized(), 0);
    EXPECT(PMI2_Init(NULL, &number, &number, &number), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_KVS_Put("a", "b"), PMI2_ERR_INIT);
    EXPECT(PMI2_KVS_Fence(), PMI2_ERR_INIT);
    EXPECT(PMI2_Job_GetId(id, sizeof id), PMI2_ERR_INIT);
    EXPECT(PMI2_Finalize(), PMI2_SUCCESS);
}

static void nulls(void) {
    int number = 0, numbers[2];
    char text[8];
    EXPECT(PMI2_Job_GetId(NULL, 8), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_GetId(text, 0), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_GetRank(NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Info_GetSize(NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_Connect("job", NULL), PMI2_ERR_OTHER);
    EXPECT(PMI2_Job_Disconnect("job"), PMI2_ERR_OTHER);
    EXPECT(PMI2_KVS_Put(NULL, "v"), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_KVS_Put("", "v"), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_KVS_Put("k", NULL), PMI2_ERR_INVALID_VAL);
    EXPECT(PMI2_KVS_Put("k", "two\nlines"), PMI2_ERR_INVALID_VAL);
    EXPECT(PMI2_KVS_Get(NULL, PMI2_ID_NULL, NULL, text, 8, &number), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_KVS_Get("another-job", PMI2_ID_NULL, "k", text, 8, &number), PMI2_ERR_OTHER);
    EXPECT(PMI2_KVS_Get(NULL, INT_MIN, "-NONEXIST-KEY", NULL, 0, &number), PMI2_ERR_OTHER);
    EXPECT(PMI2_Info_PutNodeAttr(NULL, "v"), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_Info_GetNodeAttr("n", NULL, 8, &number, 0), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Info_GetNodeAttr("n", text, 8, NULL, 0), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Info_GetJobAttr(NULL, text, 8, &number), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_Info_GetJobAttr("PMI_process_mapping", text, -1, &number), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Info_GetJobAttrIntArray("x", NULL, 2, &number, &number), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Info_GetJobAttrIntArray("x", numbers, 2, NULL, &number), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Nameserv_publish(NULL, NULL, "p"), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Nameserv_lookup("s", NULL, NULL, 8), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Nameserv_unpublish(NULL, NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_Spawn(1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, text, 8, NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_Spawn(1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, text, 0, NULL), PMI2_ERR_INVALID_LENGTH);
    EXPECT(PMI2_Job_Spawn(INT_MIN, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, text, 8, NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMI2_Job_Spawn(1, NULL, NULL, NULL, NULL, NULL, NULL, -1, NULL, text, 8, NULL), PMI2_ERR_INVALID_ARG);
    EXPECT(PMIX_Ring(NULL, &number, &number, text, text, 8), PMI2_ERR_INVALID_ARG);
    EXPECT(PMIX_Ring("v", &number, &number, text, NULL, 8), PMI2_ERR_INVALID_ARG);
}

/* A value is cut to the buffer, and its length says so. */
static void lengths(void) {
    int length = -7;
    char key[64], *value = text(1000), *seen;
    snprintf(key, sizeof key, "length;%d", rank);
    EXPECT(PMI2_KVS_Put(key, value), PMI2_SUCCESS);
    EXPECT(PMI2_KVS_Put(text(65), "v"), PMI2_ERR_INVALID_KEY);
    EXPECT(PMI2_KVS_Put("k", text(1025)), PMI2_ERR_INVALID_VAL);
    EXPECT(PMI2_KVS_Fence(), PMI2_SUCCESS);
    EXPECT(PMI2_KVS_Get(NULL, rank, "absent", buffer(8), 8, &length), PMI2_ERR_OTHER);
    EXPECT(length, -7);
    for (int room = 1; room < 40; room++) {
        seen = buffer(room);
        EXPECT(PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, seen, room, &length), PMI2_SUCCESS);
        EXPECT(length, -1000);
        EXPECT((int)strlen(seen) == room - 1 && strncmp(seen, value, room - 1) == 0, 1);
    }
    EXPECT(PMI2_KVS_Get("", PMI2_ID_NULL, key, buffer(1000), 1000, &length), PMI2_SUCCESS);
    EXPECT(length, -1000);
    seen = buffer(1001);
    EXPECT(PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, seen, 1001, &length), PMI2_SUCCESS);
    EXPECT(length == 1000 && strcmp(seen, value) == 0, 1);
    EXPECT(PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, NULL, 0, &length), PMI2_SUCCESS);
    EXPECT(length, -1000);
    EXPECT(PMI2_KVS_Get(NULL, PMI2_ID_NULL, key, seen, 1001, NULL), PMI2_SUCCESS);
}

static void attributes(void) {
    int found = -7, written = -7, numbers[3] = {0, 0, 0};
    char *seen = buffer(8);
    EXPECT(PMI2_Info_GetNodeAttr("absent", seen, 8, &found, 0), PMI2_SUCCESS);
    EXPECT(found, 0);
    EXPECT(PMI2_Info_PutNodeAttr("list", "1,2,-3"), PMI2_SUCCESS);
    EXPECT(PMI2_Info_GetNodeAttr("list", seen, 8, &found, 1), PMI2_SUCCESS);
    EXPECT(found == 1 && strcmp(seen, "1,2,-3") == 0, 1);
    EXPECT(PMI2_Info_GetNodeAttr("list", seen, 3, &found, 1), PMI2_SUCCESS);
    EXPECT(strcmp(seen, "1,"), 0);
    EXPECT(PMI2_Info_GetNodeAttrIntArray("list", numbers, 2, &written, &found), PMI2_SUCCESS);
    EXPECT(found == 1 && written == 2 && numbers[0] == 1 && numbers[1] == 2 && numbers[2] == 0, 1);
    EXPECT(PMI2_Info_GetNodeAttrIntArray("list", numbers, -1, &written, &found), PMI2_SUCCESS);
    EXPECT(written, 0);
    EXPECT(PMI2_Info_GetJobAttrIntArray("cartDims", numbers, 3, &written, &found), PMI2_SUCCESS);
    EXPECT(found, 0);
    if (size > 1) {
        EXPECT(PMI2_Info_GetJobAttr("PMI_process_mapping", buffer(1024), 1024, &found), PMI2_SUCCESS);
        EXPECT(found, 1);
        EXPECT(PMI2_Info_GetJobAttrIntArray("PMI_process_mapping", numbers, 3, &written, &found), PMI2_ERR_OTHER);
    }
}

static void *puts_and_gets(void *argument) {
    char key[64], value[64], seen[64];
    int length;
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "t-%d-%ld-%d", rank, (long)argument, i);
        snprintf(value, sizeof value, "%ld;%d", (long)argument, i);
        EXPECT(PMI2_KVS_Put(key, value), PMI2_SUCCESS);
        EXPECT(PMI2_KVS_Get(NULL, rank, key, seen, sizeof seen, &length), PMI2_SUCCESS);
        EXPECT(strcmp(seen, value), 0);
    }
    return NULL;
}

static void threads(void) {
    pthread_t ids[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&ids[i], NULL, puts_and_gets, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(ids[i], NULL);
}

static void forked(void) {
    char key[64], value[64];
    int status, length;
    snprintf(key, sizeof key, "child-%d", rank);
    pid_t child = fork();
    if (child == 0) {
        EXPECT(PMI2_KVS_Put(key, "here"), PMI2_SUCCESS);
        EXPECT(PMI2_KVS_Get(NULL, rank, key, value, sizeof value, &length), PMI2_SUCCESS);
        fflush(stdout);
        _exit(failed);
    }
    waitpid(child, &status, 0);
    EXPECT(status, 0);
    EXPECT(PMI2_KVS_Get(NULL, rank, key, value, sizeof value, &length), PMI2_SUCCESS);
    EXPECT(length == 4 && strcmp(value, "here") == 0, 1);
}

int main(int argc, char **argv) {
    int spawned, appnum, lives = argc > 1 ? atoi(argv[1]) : 1, number;
    char id[256];
    before();
    for (int life = 0; life < lives; life++) {
        EXPECT(PMI2_Init(&spawned, &size, &rank, &appnum), PMI2_SUCCESS);
        EXPECT(PMI2_Init(&spawned, &size, &rank, &appnum), PMI2_SUCCESS);
        EXPECT(PMI2_Initialized(), 1);
        EXPECT(PMI2_Job_GetRank(&number) == PMI2_SUCCESS && number == rank, 1);
        EXPECT(PMI2_Info_GetSize(&number) == PMI2_SUCCESS && number == size, 1);
        EXPECT(PMI2_Job_GetId(id, sizeof id), getenv("PMI_FD") || getenv("PMI_PORT") ? PMI2_SUCCESS : PMI2_ERR_OTHER);
        nulls();
        lengths();
        attributes();
        threads();
        if (size > 1)
            forked();
        EXPECT(PMI2_KVS_Fence(), PMI2_SUCCESS);
        EXPECT(PMI2_Finalize(), PMI2_SUCCESS);
        EXPECT(PMI2_KVS_Put("a", "b"), PMI2_ERR_INIT);
    }
    printf("rank %d of %d: %d failed\n", rank, size, failed);
    return failed != 0;
}
