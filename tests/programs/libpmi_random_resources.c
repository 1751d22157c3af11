/* Makes, registers and releases resources of all kinds at random, by a seed, and is killed by itself at a random step. Arguments:
 *
 *   DIRECTORY TAG run SEED FOREIGN...   as a rank; FOREIGN is DIRECTORY TAG PID of what is somebody else's
 *   DIRECTORY TAG hold                  as a rank: registers one of each kind, and waits for the file DIRECTORY/go
 *   DIRECTORY TAG make | list | clean   makes one of each kind; prints what there is; removes all
 *
 * Names and keys are made of the tag and a number, so that everything is found whoever was killed when. What a rank does is in the file
 * DIRECTORY/log-RANK, a line before and a line after each act: "ACT NUMBER KIND", "DONE NUMBER KIND CODE".
 */
#include <pmi_ext.h>
#include <fcntl.h>
#include <mqueue.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHM, SEM, MSG, PSHM, PSEM, MQ, FIL, DIR, PID, KINDS };
enum { OF_A_RANK = 64, NUMBERS = 256, STEPS = 12, FOREIGNERS_MAX = 4 };

static const char *directory;
static unsigned tag, state;
static int rank, record, points, dies_at = -1;
static pid_t children[NUMBERS];

/* xorshift */
static unsigned draw(unsigned below) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % below;
}

static key_t key_of(unsigned tag, int number) {
    return (key_t)(0x4c000000u | (tag & 0xffff) << 8 | (unsigned)number);
}

/* Name of an object as its system calls take it. */
static char *plain(const char *directory, unsigned tag, int number, int kind) {
    static char text[4300];
    if (kind == FIL || kind == DIR)
        snprintf(text, sizeof text, "%s/%s-%d", directory, kind == FIL ? "file" : "tree", number);
    else
        snprintf(text, sizeof text, "/lattice-random-%u-%d", tag, number);
    return text;
}

/* Name of a resource; the id of one of System V is looked up by its key. */
static char *resource(const char *directory, unsigned tag, int number, int kind, pid_t pid) {
    static const char *const words[] = {"shm", "sem", "msg", "pshm", "psem", "mq", "file", "dir", "pid"};
    static char text[4400];
    key_t key = key_of(tag, number);
    int id = kind == SHM ? shmget(key, 0, 0) : kind == SEM ? semget(key, 0, 0) : kind == MSG ? msgget(key, 0) : pid;
    if (kind <= MSG || kind == PID)
        snprintf(text, sizeof text, "%s:%d", words[kind], id);
    else
        snprintf(text, sizeof text, "%s:%s", words[kind], plain(directory, tag, number, kind));
    return text;
}

static char *own(int number, int kind) { return resource(directory, tag, number, kind, children[number]); }

/* Name for an intent: numbers are not known before the making. */
static char *intent(int number, int kind) {
    static const char *const words[] = {"shm:", "sem:", "msg:"};
    return kind <= MSG ? (char *)words[kind] : kind == PID ? "pid:" : own(number, kind);
}

static int make(int number, int kind) {
    key_t key = key_of(tag, number);
    char *name = plain(directory, tag, number, kind), inner[4400];
    struct mq_attr small = {.mq_maxmsg = 1, .mq_msgsize = 1};
    switch (kind) {
    case SHM: return shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0600) < 0;
    case SEM: return semget(key, 1, IPC_CREAT | IPC_EXCL | 0600) < 0;
    case MSG: return msgget(key, IPC_CREAT | IPC_EXCL | 0600) < 0;
    case PSHM: return close(shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600));
    case PSEM: return sem_open(name, O_CREAT | O_EXCL, 0600, 1) == SEM_FAILED;
    case MQ: return mq_close(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &small));
    case FIL: return close(open(name, O_CREAT | O_EXCL | O_WRONLY, 0600));
    case DIR:
        snprintf(inner, sizeof inner, "%s/inner", name);
        return mkdir(name, 0700) || close(open(inner, O_CREAT | O_WRONLY, 0600));
    default:
        children[number] = fork();
        while (children[number] == 0)
            pause();
        return children[number] < 0;
    }
}

static int clear(int number, int kind) {
    key_t key = key_of(tag, number);
    char *name = plain(directory, tag, number, kind), inner[4400];
    switch (kind) {
    case SHM: return shmctl(shmget(key, 0, 0), IPC_RMID, NULL);
    case SEM: return semctl(semget(key, 0, 0), 0, IPC_RMID);
    case MSG: return msgctl(msgget(key, 0), IPC_RMID, NULL);
    case PSHM: return shm_unlink(name);
    case PSEM: return sem_unlink(name);
    case MQ: return mq_unlink(name);
    case FIL: return unlink(name);
    case DIR:
        snprintf(inner, sizeof inner, "%s/inner", name);
        unlink(inner);
        return rmdir(name);
    default: return kill(children[number], SIGKILL);
    }
}

static int exists(int number, int kind) {
    key_t key = key_of(tag, number);
    char path[4400], *name = plain(directory, tag, number, kind);
    mqd_t queue;
    switch (kind) {
    case SHM: return shmget(key, 0, 0) >= 0;
    case SEM: return semget(key, 0, 0) >= 0;
    case MSG: return msgget(key, 0) >= 0;
    case PSHM: snprintf(path, sizeof path, "/dev/shm%s", name); return access(path, F_OK) == 0;
    case PSEM: snprintf(path, sizeof path, "/dev/shm/sem.%s", name + 1); return access(path, F_OK) == 0;
    case MQ: return (queue = mq_open(name, O_RDONLY)) != (mqd_t)-1 && mq_close(queue) == 0;
    default: return access(name, F_OK) == 0;
    }
}

/* A place where this rank may be killed. */
static void point(void) {
    if (points++ == dies_at)
        kill(getpid(), SIGKILL);
}

static void before(const char *act, int number, int kind) {
    dprintf(record, "%s %d %d\n", act, number, kind);
    point();
}

static int after(const char *act, int number, int kind, int code) {
    dprintf(record, "%s %d %d %d\n", act, number, kind, kind == PID && code == 0 && !strcmp(act, "made") ? children[number] : code);
    point();
    return code == 0;
}

static int intend(int number, int kind) {
    before("intend", number, kind);
    return after("intended", number, kind, PMI_Resource_intend(intent(number, kind)));
}

static int create(int number, int kind) {
    before("make", number, kind);
    return after("made", number, kind, make(number, kind));
}

static int hold(int number, int kind) {
    before("register", number, kind);
    return after("registered", number, kind, PMI_Resource_register(own(number, kind), NULL, NULL, NULL, NULL));
}

static void take_back(int number, int kind, char *name) {
    before("end", number, kind);
    after("ended", number, kind, PMI_Resource_release_end(name));
}

static void release(int number, int kind) {
    static char name[4400];
    strcpy(name, own(number, kind));
    before("begin", number, kind);
    after("begun", number, kind, PMI_Resource_release_begin(name, 60));
    before("remove", number, kind);
    after("removed", number, kind, clear(number, kind));
    take_back(number, kind, name);
}

static void foreign(char **foreigners, int count) {
    int kind = draw(KINDS);
    char **one = foreigners + 3 * draw(count / 3);
    char *name = resource(one[0], atoi(one[1]), kind, kind, atoi(one[2]));
    after("foreign", kind, kind, PMI_Resource_register(name, NULL, NULL, NULL, NULL));
}

static void run(char **foreigners, int count) {
    int number = rank * OF_A_RANK, held[STEPS], kinds[STEPS], holds = 0;
    for (int step = 0; step < STEPS; step++, number++) {
        int kind = draw(KINDS), act = draw(14), one = holds ? draw(holds) : 0;
        if (act < 8) {
            if (act < 6)
                intend(number, kind);
            create(number, kind);
            if (hold(number, kind)) {
                held[holds] = number;
                kinds[holds++] = kind;
            }
        } else if (act == 8) {
            create(number, kind);
        } else if (act == 9) {
            intend(number, kind);
            create(number, kind);
            take_back(number, kind, intent(number, kind));
        } else if (act < 12 && holds) {
            if (act == 10)
                release(held[one], kinds[one]);
            else
                take_back(held[one], kinds[one], own(held[one], kinds[one]));
            held[one] = held[--holds];
            kinds[one] = kinds[holds];
        } else if (act == 12) {
            intend(number, kind);
            take_back(number, kind, intent(number, kind));
        } else {
            foreign(foreigners, count);
        }
    }
}

int main(int argc, char **argv) {
    int spawned, is_rank;
    char path[4400];
    if (argc < 4)
        return 2;
    directory = argv[1];
    tag = atoi(argv[2]);
    is_rank = !strcmp(argv[3], "run") || !strcmp(argv[3], "hold");
    if (is_rank && (PMI_Init(&spawned) || PMI_Get_rank(&rank)))
        return 2;
    if (is_rank) {
        snprintf(path, sizeof path, "%s/log-%d", directory, rank);
        record = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    }
    if (!strcmp(argv[3], "run")) {
        state = (atoi(argv[4]) + 1) * 2654435761u ^ (rank + 1) * 40503u;
        for (int warm = 0; warm < 8; warm++)
            draw(2);
        int how = draw(8);
        dies_at = draw(2) ? (int)draw(60) : -1;
        dprintf(record, "pid %d %d %d\n", 0, 0, getpid());
        PMI_Barrier();
        run(argv + 5, argc - 5);
        if (how == 0)
            PMI_Abort(9, "on purpose");
        if (how == 1)
            _exit(0);
        return PMI_Finalize();
    }
    if (!strcmp(argv[3], "hold")) {
        for (int kind = 0; kind < KINDS; kind++)
            if (!create(kind, kind) || !hold(kind, kind))
                return 3;
        printf("child %d\nholds all\n", children[PID]);
        fflush(stdout);
        snprintf(path, sizeof path, "%s/go", directory);
        while (access(path, F_OK))
            usleep(10000);
        return PMI_Finalize();
    }
    for (int kind = 0; kind < PID; kind++) {
        if (!strcmp(argv[3], "make") && make(kind, kind))
            return 3;
        for (int number = 0; number < NUMBERS; number++) {
            if (!strcmp(argv[3], "list") && exists(number, kind))
                printf("%d %d\n", number, kind);
            else if (!strcmp(argv[3], "clean"))
                clear(number, kind);
        }
    }
    return 0;
}
