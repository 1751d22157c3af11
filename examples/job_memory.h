/* A reader of a job's memory under Lattice, to be copied into a program: docs/embed/shared-memory.md is the contract.
 *
 * Nothing outside the memory is read, whatever it holds. C11, Linux. */
#ifndef LATTICE_JOB_MEMORY_H
#define LATTICE_JOB_MEMORY_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif
#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

enum { JOB_STATE = 192, JOB_FENCES = 200, JOB_INDEX = 216, JOB_HEADER = 256, JOB_LIVE = 1, JOB_PROBES = 1024 };

struct job_memory {
    const char *bytes;
    uint64_t size;
};

/* The word of 8 bytes at an offset; 0 outside the memory. What was written before it was is seen afterwards. */
static inline uint64_t job_word(const struct job_memory *job, uint64_t offset) {
    if (offset % 8 || offset > job->size - 8)
        return 0;
    return atomic_load_explicit((const _Atomic uint64_t *)(job->bytes + offset), memory_order_acquire);
}

/* The number of 4 bytes at an offset. */
static inline uint32_t job_number(const struct job_memory *job, uint64_t offset) {
    uint64_t word = job_word(job, offset & ~UINT64_C(7));
    uint32_t halves[2];
    memcpy(halves, &word, sizeof word);
    return halves[offset / 4 % 2];
}

/* So many bytes and the zero byte behind them; NULL if they are not within the memory. */
static inline const char *job_bytes(const struct job_memory *job, uint64_t offset, uint64_t length) {
    if (offset < JOB_HEADER || offset >= job->size || length >= job->size - offset || job->bytes[offset + length])
        return NULL;
    return job->bytes + offset;
}

/* The text that the word at an offset names; NULL if there is none. */
static inline const char *job_text(const struct job_memory *job, uint64_t offset) {
    uint64_t text = job_word(job, offset);
    return text ? job_bytes(job, text + 8, job_word(job, text)) : NULL;
}

/* The offset of an entry of the table of ranks (64), nodes (80) or attributes (96); 0 if there is no such entry. */
static inline uint64_t job_entry(const struct job_memory *job, uint64_t table, uint32_t number) {
    if (number >= job_number(job, table + 12))
        return 0;
    return job_word(job, table) + (uint64_t)number * job_number(job, table + 8);
}

/* Maps the memory of this process's job, and asks for pairs from the next fence on; 0 without one, and then PMI has to be asked.
 * `job_id` is PMI-1's kvsname, PMI-2's jobid. */
static inline int job_open(struct job_memory *job, const char *job_id) {
    const char *variable = getenv("LATTICE_JOB_MEMORY");
    struct flock first_byte = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    char link[64] = "", path[64] = "/proc/self/fd/";
    struct stat file;
    if (!variable || strlen(variable) > 9)
        return 0;
    /* The descriptor may have been closed, and its number be something else. */
    strcat(path, variable);
    if (readlink(path, link, sizeof link - 1) < 0 || strncmp(link, "/memfd:lattice-job-memory", 25))
        return 0;
    int fd = atoi(variable), seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_FUTURE_WRITE) || fstat(fd, &file) || file.st_size < JOB_HEADER)
        return 0;
    job->size = (uint64_t)file.st_size / 8 * 8;
    job->bytes = mmap(NULL, job->size, PROT_READ, MAP_SHARED, fd, 0);
    if (job->bytes == MAP_FAILED)
        return 0;
    madvise((void *)job->bytes, job->size, MADV_DONTDUMP);
    uint16_t major;
    memcpy(&major, job->bytes + 8, sizeof major);
    const char *seen = job_text(job, 24);
    if (!memcmp(job->bytes, "LATTJOB1", 8) && major == 1 && job_number(job, 12) == 0x01020304 && seen && !strcmp(seen, job_id)
        && !fcntl(fd, F_OFD_SETLK, &first_byte))
        return 1;
    munmap((void *)job->bytes, job->size);
    return 0;
}

static inline uint64_t job_mix(uint64_t hash) {
    hash *= UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* The value of a key and its length, with a zero byte behind it; NULL if PMI has to be asked. It stays as it is, also when the key is put
 * again. */
static inline const char *job_get(const struct job_memory *job, const char *key, uint32_t *length) {
    uint32_t bytes = (uint32_t)strlen(key);
    uint64_t hash = bytes, index;
    if (job_word(job, JOB_STATE) != JOB_LIVE || !(index = job_word(job, JOB_INDEX)))
        return NULL;
    for (uint32_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, key + at, bytes - at < 8 ? bytes - at : 8);
        hash = job_mix(hash ^ word);
    }
    hash = job_mix(hash);
    uint64_t slots = UINT64_C(1) << (index & 63), first = index & ~UINT64_C(63);
    for (uint64_t probe = 0; probe < slots && probe < JOB_PROBES; probe++) {
        uint64_t slot = job_word(job, first + ((uint32_t)hash + probe) % slots * 8);
        if (!slot)
            return NULL;
        if (slot >> 32 != hash >> 32)
            continue;
        uint64_t record = (slot & UINT32_MAX) * 8, value = record + 8 + (bytes + 7) / 8 * 8;
        *length = job_number(job, record);
        const char *found = job_bytes(job, value, *length);
        if (job_number(job, record + 4) == bytes && found && !memcmp(job->bytes + record + 8, key, bytes))
            return found;
    }
    return NULL;
}

#endif
