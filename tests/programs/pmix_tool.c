/* A PMIx tool on a running launch.

   pmix_tool WAY ARGUMENT DEED...: WAY is how it finds the server: "pid", "launch" or "uri" with an ARGUMENT, or "variables" with any.
   Deeds: look, pause, resume, kill, hear (an event), tell (it), stay; pull (all output), pull-1 (standard error of rank 1), stall FILE (read
   nothing that is pulled until the file is there), unpull (the last one), push TEXT, drain (until the streams of two ranks, or of one that
   was stalled, have ended). */
#include <pmix_tool.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t me;
static char job[PMIX_MAX_NSLEN + 1];

static pmix_status_t ask(const char *key, const char *namespace, pmix_info_t *found) {
    pmix_query_t query;
    pmix_info_t *results = NULL;
    size_t count = 0;
    pmix_status_t status;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(status, query.keys, key);
    if (namespace) {
        PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
        PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, namespace, PMIX_STRING);
    }
    status = PMIx_Query_info(&query, 1, &results, &count);
    if (status == PMIX_SUCCESS && count == 1)
        PMIX_INFO_XFER(found, &results[0]);
    return status == PMIX_SUCCESS && count != 1 ? PMIX_ERROR : status;
}

static void look(void) {
    pmix_info_t found;
    pmix_value_t *value = NULL;
    pmix_proc_t all;
    size_t size = 0, rows = 0;
    PMIX_LOAD_PROCID(&all, job, PMIX_RANK_WILDCARD);
    pmix_status_t status = PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value);
    if (status == PMIX_SUCCESS)
        size = value->data.uint32;
    /* The table has no rank that is still being started. */
    for (int tries = 0; tries < 500; tries++) {
        pmix_status_t asked = ask(PMIX_QUERY_PROC_TABLE, job, &found);
        if (asked != PMIX_SUCCESS) {
            printf("no table: %s\n", PMIx_Error_string(asked));
            return;
        }
        rows = found.value.data.darray->size;
        if (rows >= size)
            break;
        usleep(10000);
    }
    const pmix_proc_info_t *processes = found.value.data.darray->array;
    for (size_t row = 0; row < rows; row++)
        printf("rank %u: %s\n", processes[row].proc.rank, strrchr(processes[row].executable_name, '/') + 1);
    printf("size %d\n", status == PMIX_SUCCESS ? (int)size : status);
    status = PMIx_Fence(&all, 1, NULL, 0);
    printf("in a fence: %s\n", status == PMIX_SUCCESS ? "SUCCESS" : "refused");
}

static void control(const char *directive) {
    pmix_info_t info;
    pmix_proc_t all;
    bool yes = true;
    PMIX_LOAD_PROCID(&all, job, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&info, directive, &yes, PMIX_BOOL);
    pmix_status_t status = PMIx_Job_control(&all, 1, &info, 1, NULL, NULL);
    printf("%s: %s\n", directive, PMIx_Error_string(status));
}

static const pmix_status_t TIDE = PMIX_EXTERNAL_ERR_BASE - 7;

static volatile sig_atomic_t heard;
static void on_event(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                     pmix_info_t results[], size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data) {
    heard = 1;
    if (done)
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void hear(void) {
    pmix_status_t code = TIDE;
    PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, NULL, NULL);
    puts("listening");
    for (int tenths = 0; !heard && tenths < 300; tenths++)
        usleep(100000);
    printf("event: %s\n", heard ? "heard" : "missed");
}

static volatile sig_atomic_t ended;
static size_t received;
static volatile size_t lost;
static const char *stall;
static size_t pulled;
static volatile pmix_status_t status_told;
static volatile sig_atomic_t answered;

static void on_output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *piece,
                      pmix_info_t info[], size_t ninfo) {
    const char *stream = channel == PMIX_FWD_STDOUT_CHANNEL ? "out" : channel == PMIX_FWD_STDERR_CHANNEL ? "err" : "?";
    for (int tenths = 0; stall && access(stall, F_OK) && tenths < 300; tenths++)
        usleep(100000);
    received += piece->size;
    if (piece->size && !stall)
        printf("%u %s: %.*s", source->rank, stream, (int)piece->size, piece->bytes);
    for (size_t n = 0; n < ninfo; n++)
        if (PMIX_CHECK_KEY(&info[n], PMIX_IOF_COMPLETE)) {
            if (!stall)
                printf("%u %s: end\n", source->rank, stream);
            ended++;
        } else if (PMIX_CHECK_KEY(&info[n], "lattice.iof.lost"))
            lost += info[n].value.data.size;
}

static void on_answer(pmix_status_t status, void *data) {
    status_told = status;
    answered = 1;
}

static void on_pulled(pmix_status_t status, size_t number, void *data) {
    pulled = number;
    on_answer(status, data);
}

static pmix_status_t answer(void) {
    for (int tenths = 0; !answered && tenths < 300; tenths++)
        usleep(100000);
    return answered ? status_told : PMIX_ERR_TIMEOUT;
}

/* Without a callback libpmix 6.1 does not tell the number of the pull. */
static void pull(pmix_rank_t rank, pmix_iof_channel_t channels) {
    pmix_proc_t source;
    PMIX_LOAD_PROCID(&source, job, rank);
    answered = 0;
    PMIx_IOF_pull(&source, 1, NULL, 0, channels, on_output, on_pulled, NULL);
    pmix_status_t status = answer();
    if (status == PMIX_SUCCESS)
        puts("pulling");
    else
        printf("pull: %s\n", PMIx_Error_string(status));
}

/* Without a callback libpmix 4.2.2 frees what it waits for. */
static void unpull(void) {
    answered = 0;
    PMIx_IOF_deregister(pulled, NULL, 0, on_answer, NULL);
    printf("unpull: %s\n", answer() == PMIX_SUCCESS ? "SUCCESS" : PMIx_Error_string(status_told));
}

static void push(char *text) {
    pmix_byte_object_t piece = {text, strlen(text)};
    answered = 0;
    PMIx_IOF_push(NULL, 0, &piece, NULL, 0, on_answer, NULL);
    pmix_status_t status = answer();
    printf("push: %s\n", status == PMIX_SUCCESS             ? "SUCCESS"
                         : status == PMIX_ERR_NOT_SUPPORTED ? "not supported"
                                                            : PMIx_Error_string(status));
}

static void drain(void) {
    int all = stall ? 2 : 4;
    for (int tenths = 0; stall && !lost && tenths < 300; tenths++)
        usleep(100000);
    if (stall)
        puts("read on");
    for (int tenths = 0; ended < all && tenths < 300; tenths++)
        usleep(100000);
    printf("streams at their end: %d\n", (int)ended);
    if (stall)
        printf("received and lost %zu, %s\n", received + lost, lost > 0 ? "some lost" : "nothing lost");
}

int main(int argc, char **argv) {
    pmix_info_t how;
    pmix_info_t found;
    int pid = 0;
    size_t hows = 1;
    const char *way = argc > 2 ? argv[1] : "";
    if (!strcmp(way, "pid")) {
        pid = atoi(argv[2]);
        PMIX_INFO_LOAD(&how, PMIX_SERVER_PIDINFO, &pid, PMIX_PID);
    } else if (!strcmp(way, "launch")) {
        PMIX_INFO_LOAD(&how, PMIX_SERVER_NSPACE, argv[2], PMIX_STRING);
    } else if (!strcmp(way, "uri")) {
        PMIX_INFO_LOAD(&how, PMIX_SERVER_URI, argv[2], PMIX_STRING);
    } else
        hows = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    pmix_status_t status = PMIx_tool_init(&me, hows ? &how : NULL, hows);
    if (status != PMIX_SUCCESS) {
        printf("no server: %s\n", PMIx_Error_string(status));
        return 3;
    }
    status = ask(PMIX_QUERY_NAMESPACES, NULL, &found);
    if (status != PMIX_SUCCESS) {
        printf("no jobs: %s\n", PMIx_Error_string(status));
        return 4;
    }
    strncpy(job, found.value.data.string, PMIX_MAX_NSLEN);
    job[strcspn(job, ",")] = 0;
    printf("%s as rank %u\n", strncmp(me.nspace, job, PMIX_MAX_NSLEN) ? "a job of its own" : "the job", me.rank);
    for (int deed = 3; deed < argc; deed++) {
        if (!strcmp(argv[deed], "look"))
            look();
        else if (!strcmp(argv[deed], "pause"))
            control(PMIX_JOB_CTRL_PAUSE);
        else if (!strcmp(argv[deed], "resume"))
            control(PMIX_JOB_CTRL_RESUME);
        else if (!strcmp(argv[deed], "kill"))
            control(PMIX_JOB_CTRL_KILL);
        else if (!strcmp(argv[deed], "hear"))
            hear();
        else if (!strcmp(argv[deed], "tell"))
            PMIx_Notify_event(TIDE, &me, PMIX_RANGE_GLOBAL, NULL, 0, NULL, NULL);
        else if (!strcmp(argv[deed], "pull"))
            pull(PMIX_RANK_WILDCARD, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL);
        else if (!strcmp(argv[deed], "pull-1"))
            pull(1, PMIX_FWD_STDERR_CHANNEL);
        else if (!strcmp(argv[deed], "stall"))
            stall = argv[++deed];
        else if (!strcmp(argv[deed], "unpull"))
            unpull();
        else if (!strcmp(argv[deed], "push"))
            push(argv[++deed]);
        else if (!strcmp(argv[deed], "drain"))
            drain();
        else if (!strcmp(argv[deed], "stay"))
            pause();
    }
    PMIx_tool_finalize();
    return 0;
}
