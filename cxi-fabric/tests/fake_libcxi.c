/* A libcxi that is none, for node_backends.rs: records its calls in HOME/calls, keeps services in memory, and returns the codes in
 * the file HOME/<function>, one a line, before it does anything. Structures are spelt as in the driver's cxi-abi.h. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct limit { uint16_t max, res; };
struct member { uint32_t id; uint32_t type; };
struct desc {
    uint8_t restricted_members : 1, restricted_vnis : 1, restricted_tcs : 1, resource_limits : 1, enable : 1, is_system_svc : 1,
        cntr_pool_id : 2;
    uint8_t num_vld_vnis;
    uint16_t vnis[4];
    bool tcs[5];
    struct member members[2];
    struct limit limits[8];
    unsigned int svc_id;
};
struct fail { uint16_t avail[8]; bool no_le_pools, no_tle_pools, no_cntr_pools; };
struct list { unsigned int count; struct desc descs[]; };
struct dev { unsigned int id; };

static struct { unsigned int dev; struct desc desc; } services[16] = {};
static unsigned int made = 1;

static void record(const char *line)
{
    FILE *file = fopen(HOME "/calls", "a");
    fprintf(file, "%s\n", line);
    fclose(file);
}

/* Takes the first code of a file; the others are left for the next call, or are the account of the failure. */
static int injected(const char *function, int *account)
{
    char path[512], rest[1024] = "", line[64];
    int code = 0, values = 0;
    snprintf(path, sizeof(path), HOME "/%s", function);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fgets(line, sizeof(line), file))
        code = atoi(line);
    while (fgets(line, sizeof(line), file)) {
        if (account && values < 8)
            account[values++] = atoi(line);
        else
            strcat(rest, line);
    }
    fclose(file);
    file = fopen(path, "w");
    fputs(rest, file);
    fclose(file);
    return code;
}

int cxil_open_device(uint32_t id, struct dev **dev)
{
    char line[64];
    int code = injected("open", NULL);
    if (code)
        return code;
    snprintf(line, sizeof(line), "open %u", id);
    record(line);
    *dev = malloc(sizeof(**dev));
    (*dev)->id = id;
    return 0;
}

void cxil_close_device(struct dev *dev)
{
    record("close");
    free(dev);
}

int cxil_alloc_svc(struct dev *dev, const struct desc *d, struct fail *fail)
{
    static const char *names[] = {"PTE", "TXQ", "TGQ", "EQ", "CT", "LE", "TLE", "AC"};
    char line[1024];
    int account[8] = {}, code = injected("alloc", account);
    if (code) {
        for (int i = 0; i < 8; i++)
            fail->avail[i] = account[i] > 0 ? account[i] : 0;
        fail->no_le_pools = account[0] == -1;
        fail->no_tle_pools = account[0] == -2;
        return code;
    }
    int at = snprintf(line, sizeof(line),
                      "alloc members=%d vnis=%d tcs=%d limits=%d enable=%d system=%d uid=%u type=%u,%u vni=%u", d->restricted_members,
                      d->restricted_vnis, d->restricted_tcs, d->resource_limits, d->enable, d->is_system_svc, d->members[0].id,
                      d->members[0].type, d->members[1].type, d->vnis[0]);
    for (int i = 1; i < d->num_vld_vnis; i++)
        at += snprintf(line + at, sizeof(line) - at, ",%u", d->vnis[i]);
    at += snprintf(line + at, sizeof(line) - at, " tc=");
    for (int i = 0; i < 5; i++)
        at += snprintf(line + at, sizeof(line) - at, "%d", d->tcs[i]);
    for (int i = 0; i < 8; i++)
        at += snprintf(line + at, sizeof(line) - at, " %s=%u/%u", names[i], d->limits[i].res, d->limits[i].max);
    record(line);
    for (int i = 0; i < 16; i++) {
        if (!services[i].desc.svc_id) {
            services[i].dev = dev->id;
            services[i].desc = *d;
            return services[i].desc.svc_id = ++made;
        }
    }
    return -28;
}

int cxil_destroy_svc(struct dev *dev, unsigned int svc_id)
{
    int code = injected("destroy", NULL);
    if (code)
        return code;
    for (int i = 0; i < 16; i++) {
        if (services[i].dev == dev->id && services[i].desc.svc_id == svc_id && svc_id) {
            memset(&services[i], 0, sizeof(services[i]));
            return 0;
        }
    }
    return -22;
}

int cxil_get_svc_list(struct dev *dev, struct list **list)
{
    record("list");
    *list = calloc(1, sizeof(struct list) + 17 * sizeof(struct desc));
    /* The default service, whose unused fields hold what they like. */
    (*list)->descs[0].svc_id = 1;
    (*list)->descs[0].num_vld_vnis = 2;
    (*list)->descs[0].vnis[0] = 1;
    (*list)->descs[0].vnis[1] = 10;
    (*list)->count = 1;
    for (int i = 0; i < 16; i++)
        if (services[i].dev == dev->id && services[i].desc.svc_id)
            (*list)->descs[(*list)->count++] = services[i].desc;
    return 0;
}

void cxil_free_svc_list(struct list *list)
{
    record("free");
    free(list);
}
