/* A stub of libnvidia-ml.so.1 that plays what a text file says; it needs no GPU and no driver.

   Link it with the soname libnvidia-ml.so.1, put its folder into LD_LIBRARY_PATH, and name the text
   file in NVML_STUB_FILE. The file is read again at the first call after it changed, which also
   starts the counting of calls anew. Replace it by a rename: a line that cannot be read ends the
   process. Without a file, the driver is not loaded (9).

     driver 570.86.15
     gpu GPU-a total=1000 reserved=100 used=0 mig=0 name=NVIDIA_H200
     process 0 compute 4242 500         GPU by position, list, pid, bytes or `unavailable`
     process 0 mps 4243 0 from=2        only from the second call of that list's function on
     crowd 0 compute 5000 300 64        300 processes, from pid 5000 up, of 64 bytes each; also from=
     fail nvmlDeviceGetName 15          answer this code; also from=2, until=5 (calls), gpu=0
     fail * 9                           every function
     missing nvmlInitWithFlags          answer FUNCTION_NOT_FOUND (13)
     delay nvmlDeviceGetMemoryInfo_v2 50      wait so many milliseconds first
     hold nvmlDeviceGetMemoryInfo_v2    log `held`, and wait until this file is replaced
     live figures                       or zeros, unavailable, off

   All sizes are bytes. In `gpu`, everything but the UUID may be left out; `used` excludes what is
   reserved; mig is 0, 1 or left out (not supported); so are recovery= (the action asked for) and
   remap= (0, or 1 for pending, plus 2 for failed); compute= and virtual= are modes; an underscore in a
   name is a space; with node=/dev/nvidia0 the GPU is there only while that path is, as with a real driver: a container
   sees the GPUs whose device nodes it has. Its minor number is its place among all `gpu` lines.
   Entries are listed as they are written, so the same pid twice is a duplicate.

   Live processes: a file named <pid> in the folder `pids` beside NVML_STUB_FILE, with lines
   `<GPU's position or UUID> <bytes or unavailable> [compute|graphics|mps]`, lists that process and
   adds to the GPU's `used` while it lives. Other file names are ignored, for renames. A pid is the
   one in the caller's PID namespace. A process that ended, or is a zombie, drops out by itself.

   With `pods FOLDER` the caller sees all of a node, as with hostPID. FOLDER has a folder for each pod,
   with its own `pids`, whose numbers are those of the pod's PID namespace, and a file `pod`: what is
   in the cgroups' paths of its processes and of no others. They are listed with the caller's numbers.
   A position of a GPU is one of the caller's, so such files name the UUID.

   Samples of processes: `ran 0 4242 7 90` is one of this GPU and pid, of 7 seconds ago and 90 percent;
   in a file of `pids`, a line `<GPU> <percent> ran <Unix time>`. Each process has its newest.

   Limits of cgroups, as memacct.c of NVIDIA's kernel modules 615.71.09 has them:

     limits misc                        or dmem, or off (NOT_SUPPORTED); no such line: 13, as before r615
     limits misc cgroups=/sys/fs/cgroup in=/limits own=/sys/fs/cgroup context=1000

   `cgroups` is where all of the node's tree is seen, `own` where our own part of it is mounted (or our
   cgroup itself, where /proc/self/cgroup leads nowhere there), `in` a folder of the node where limits and charges are kept (by default the folder `limits` beside
   NVML_STUB_FILE). A cgroup is known by its inode, so a limit holds in every mount and namespace, and
   needs no controller: with `enabled=1` dmem plays one whose files are in no cgroup. A process is in
   the lists with a context of so many bytes, and no driver counts that.

   As libcuda.so.1 it allocates for the process that calls: the lists and the limits know of it, and
   an allocation beyond a limit, or beyond the GPU, fails with CUDA_ERROR_OUT_OF_MEMORY (2). Who is
   charged is the cgroup of the process that called cuInit; if that has gone, nobody.

   NVML_STUB_LOG names a file that gets a line for every call.

   Built with -DWITHOUT_V3, -DWITHOUT_V2, -DWITHOUT_MEMORY_V2, -DWITHOUT_MPS, -DWITHOUT_HEALTH, the
   functions of that kind are not exported, as in an older library. Each thread reads the file for
   itself, and counts its own calls. */

#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define TIMEOUT 10
#define FUNCTION_NOT_FOUND 13
#define GPU_IS_LOST 15
#define ARGUMENT_VERSION_MISMATCH 25
#define NOT_AVAILABLE (~0ULL)
#define FOREVER (~0U)
#define NO_GPU (-1)
#define ALL (-1)
#define SANDBOX "Name:\tpause\n" /* as /proc/PID/status begins */
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

typedef unsigned long long bytes_t;
typedef void *nvmlDevice_t;

struct process_info {
    unsigned pid;
    bytes_t used;
    unsigned gpu_instance, compute_instance;
};
struct memory_v1 {
    bytes_t total, free, used;
};
struct memory_v2 {
    unsigned version;
    bytes_t total, reserved, free, used;
};

enum list { COMPUTE, GRAPHICS, MPS, LISTS, RAN = LISTS, KINDS };
static const char *const LIST_NAMES[KINDS] = {"compute", "graphics", "mps", "ran"};

enum limits { BEFORE_R615, SWITCHED_OFF, MISC, DMEM, LIMIT_MODES };
static const char *const LIMIT_NAMES[LIMIT_MODES] = {"missing", "off", "misc", "dmem"};

enum live { FIGURES, ZEROS, UNAVAILABLE, OFF, LIVES };
static const char *const LIVE_NAMES[LIVES] = {"figures", "zeros", "unavailable", "off"};

struct options {
    bytes_t total, reserved, used, mig, recovery, remap, compute, virtual, gpu, from, until, context,
        enabled;
    char name[96], node[96], cgroups[160], own[160], in[160];
};
struct gpu {
    char uuid[96];
    unsigned minor;
    struct options is;
};
struct entry {
    int gpu, list;
    unsigned pid, many;
    bytes_t used;
    struct options when;
};
struct rule {
    char function[64];
    enum { FAILS, DELAYS, HOLDS } does;
    int value;
    struct options when;
};
struct sample {
    int gpu;
    unsigned pid, ago_s, percent;
};
struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct counter {
    char function[64];
    unsigned calls;
};

static _Thread_local struct {
    char driver[80];
    struct gpu gpus[16];
    struct entry entries[1024];
    struct rule rules[256];
    struct counter counters[64];
    struct sample samples[64];
    unsigned gpu_count, gpu_lines, entry_count, rule_count, sample_count;
    enum live live;
    enum limits limits;
    struct options limit;
    char pods[256];
    struct stat read;
} script;

static unsigned initialised, generation;
static _Thread_local unsigned calls; /* the number of the call under way, from 1, since the file was read */
static char known_uuids[64][96]; /* a handle is a place here, so it means one GPU for good */

static void die(const char *why, const char *what)
{
    fprintf(stderr, "nvml stub: %s: %s\n", why, what ? what : "(nothing)");
    abort();
}

/* ---- the file ---- */

static bytes_t number(const char *text)
{
    char *end = NULL;
    if (text && !strcmp(text, "unavailable"))
        return NOT_AVAILABLE;
    bytes_t value = text && isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    if (!end || *end)
        die("not a number", text);
    return value;
}

static int choice(const char *text, const char *const *names, int count)
{
    for (int i = 0; text && i < count; i++)
        if (!strcmp(text, names[i]))
            return i;
    die("not one of the words for this place", text);
    return 0;
}

static void copy(char *to, size_t room, const char *from)
{
    if (!from || strlen(from) >= room)
        die("missing or too long", from);
    strcpy(to, from);
}

static void *grow(void *array, size_t size, unsigned *count, size_t room)
{
    if (*count >= room)
        die("too many lines of a kind", NULL);
    void *place = (char *)array + size * (*count)++;
    memset(place, 0, size);
    return place;
}

static char *word_of(char **rest)
{
    return strtok_r(NULL, " \t", rest);
}

static struct options read_options(char **rest)
{
    struct options read = {.mig = NOT_AVAILABLE, .recovery = NOT_AVAILABLE, .remap = NOT_AVAILABLE,
                           .compute = NOT_AVAILABLE, .virtual = NOT_AVAILABLE,
                           .gpu = NOT_AVAILABLE, .until = NOT_AVAILABLE};
    struct {
        const char *key;
        bytes_t *to;
    } numbers[] = {{"total=", &read.total}, {"reserved=", &read.reserved}, {"used=", &read.used},
                   {"mig=", &read.mig},     {"gpu=", &read.gpu},           {"from=", &read.from},
                   {"until=", &read.until}, {"recovery=", &read.recovery}, {"remap=", &read.remap},
                   {"compute=", &read.compute}, {"virtual=", &read.virtual},
                   {"context=", &read.context}, {"enabled=", &read.enabled}};
    struct {
        const char *key;
        char *to;
        size_t room;
    } texts[] = {{"name=", read.name, sizeof read.name}, {"node=", read.node, sizeof read.node},
                 {"cgroups=", read.cgroups, sizeof read.cgroups}, {"own=", read.own, sizeof read.own},
                 {"in=", read.in, sizeof read.in}};
    strcpy(read.name, "Stub GPU");
    for (char *word; (word = word_of(rest));) {
        int known = 0;
        for (size_t i = 0; i < COUNT(texts); i++)
            if (!strncmp(word, texts[i].key, strlen(texts[i].key))) {
                copy(texts[i].to, texts[i].room, word + strlen(texts[i].key));
                known = 1;
            }
        for (size_t i = 0; i < COUNT(numbers); i++)
            if (!strncmp(word, numbers[i].key, strlen(numbers[i].key))) {
                *numbers[i].to = number(word + strlen(numbers[i].key));
                known = 1;
            }
        if (!known)
            die("unknown option", word);
    }
    return read;
}

static void read_gpu(char **rest)
{
    struct gpu *gpu = grow(script.gpus, sizeof *gpu, &script.gpu_count, COUNT(script.gpus));
    copy(gpu->uuid, sizeof gpu->uuid, word_of(rest));
    gpu->is = read_options(rest);
    gpu->minor = script.gpu_lines++;
    for (char *at = gpu->is.name; (at = strchr(at, '_'));)
        *at = ' ';
    if (*gpu->is.node && access(gpu->is.node, F_OK))
        script.gpu_count--;
}

static void read_entry(char **rest, int crowd)
{
    struct entry *entry =
        grow(script.entries, sizeof *entry, &script.entry_count, COUNT(script.entries));
    entry->gpu = (int)number(word_of(rest));
    entry->list = choice(word_of(rest), LIST_NAMES, LISTS);
    entry->pid = (unsigned)number(word_of(rest));
    entry->many = crowd ? (unsigned)number(word_of(rest)) : 1;
    entry->used = number(word_of(rest));
    entry->when = read_options(rest);
}

static void read_sample(char **rest)
{
    struct sample *sample =
        grow(script.samples, sizeof *sample, &script.sample_count, COUNT(script.samples));
    sample->gpu = (int)number(word_of(rest));
    sample->pid = (unsigned)number(word_of(rest));
    sample->ago_s = (unsigned)number(word_of(rest));
    sample->percent = (unsigned)number(word_of(rest));
}

static void read_limits(char **rest)
{
    script.limits = (enum limits)choice(word_of(rest), LIMIT_NAMES, LIMIT_MODES);
    script.limit = read_options(rest);
}

static void read_rule(char **rest, int does, const char *fixed)
{
    struct rule *rule = grow(script.rules, sizeof *rule, &script.rule_count, COUNT(script.rules));
    copy(rule->function, sizeof rule->function, word_of(rest));
    rule->does = does;
    rule->value = (int)number(fixed ? fixed : word_of(rest));
    rule->when = read_options(rest);
}

static void read_line(char *line)
{
    char *rest, *word;
    line[strcspn(line, "#\r\n")] = 0;
    if (!(word = strtok_r(line, " \t", &rest)))
        return;
    if (!strcmp(word, "driver"))
        copy(script.driver, sizeof script.driver, word_of(&rest));
    else if (!strcmp(word, "gpu"))
        read_gpu(&rest);
    else if (!strcmp(word, "process") || !strcmp(word, "crowd"))
        read_entry(&rest, *word == 'c');
    else if (!strcmp(word, "fail"))
        read_rule(&rest, FAILS, NULL);
    else if (!strcmp(word, "missing"))
        read_rule(&rest, FAILS, "13");
    else if (!strcmp(word, "delay"))
        read_rule(&rest, DELAYS, NULL);
    else if (!strcmp(word, "hold"))
        read_rule(&rest, HOLDS, "0");
    else if (!strcmp(word, "live"))
        script.live = (enum live)choice(word_of(&rest), LIVE_NAMES, LIVES);
    else if (!strcmp(word, "ran"))
        read_sample(&rest);
    else if (!strcmp(word, "limits"))
        read_limits(&rest);
    else if (!strcmp(word, "pods"))
        copy(script.pods, sizeof script.pods, word_of(&rest));
    else
        die("unknown line", word);
    if ((word = word_of(&rest)))
        die("too much in a line", word);
}

static int read_script(void)
{
    struct stat now;
    char line[512];
    const char *path = getenv("NVML_STUB_FILE");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return DRIVER_NOT_LOADED;
    fstat(fileno(file), &now);
    if (now.st_ino != script.read.st_ino || now.st_size != script.read.st_size ||
        now.st_mtim.tv_sec != script.read.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != script.read.st_mtim.tv_nsec) {
        memset(&script, 0, sizeof script);
        strcpy(script.driver, "570.86.15");
        script.read = now;
        while (fgets(line, sizeof line, file))
            read_line(line);
    }
    fclose(file);
    return SUCCESS;
}

/* ---- what every call goes through ---- */

static unsigned count_call(const char *function)
{
    for (size_t i = 0; i < COUNT(script.counters); i++) {
        struct counter *counter = &script.counters[i];
        if (!*counter->function)
            copy(counter->function, sizeof counter->function, function);
        if (!strcmp(counter->function, function))
            return ++counter->calls;
    }
    die("too many functions", function);
    return 0;
}

static void log_call(const char *function)
{
    const char *path = getenv("NVML_STUB_LOG");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (file) {
        fprintf(file, "%s\n", function);
        fclose(file);
    }
}

/* A driver's calls are not cut short by signals. */
static void wait_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left))
        ;
}

static int is_replaced(void)
{
    struct stat now;
    const char *path = getenv("NVML_STUB_FILE");
    return !path || stat(path, &now) || now.st_ino != script.read.st_ino;
}

/* Return what the file says about this call. */
static int enter(const char *function, int gpu)
{
    int code = SUCCESS;
    log_call(function);
    if (read_script() != SUCCESS)
        return DRIVER_NOT_LOADED;
    calls = count_call(function);
    for (unsigned i = 0; i < script.rule_count; i++) {
        const struct rule *rule = &script.rules[i];
        if ((strcmp(rule->function, function) && strcmp(rule->function, "*")) ||
            (rule->when.gpu != NOT_AVAILABLE && (int)rule->when.gpu != gpu) ||
            calls < rule->when.from || calls > rule->when.until)
            continue;
        if (rule->does == DELAYS)
            wait_ms(rule->value);
        else if (rule->does == HOLDS)
            for (log_call("held"); !is_replaced();)
                wait_ms(5);
        else
            code = rule->value;
    }
    return code;
}

static int enter_initialised(const char *function, int gpu)
{
    int code = enter(function, gpu);
    return code == SUCCESS && !initialised ? UNINITIALIZED : code;
}

static int find_gpu(const char *name)
{
    for (unsigned i = 0; i < script.gpu_count; i++)
        if (!strcmp(script.gpus[i].uuid, name))
            return (int)i;
    return NO_GPU;
}

static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER;

/* A handle holds until shutdown; it is stale (2) after that, and lost (15) without its gpu line. */
static nvmlDevice_t handle_of(int gpu)
{
    const char *uuid = script.gpus[gpu].uuid;
    uintptr_t place = 0;
    pthread_mutex_lock(&handles);
    while (*known_uuids[place] && strcmp(known_uuids[place], uuid))
        if (++place >= COUNT(known_uuids))
            die("too many UUIDs", uuid);
    copy(known_uuids[place], sizeof known_uuids[place], uuid);
    pthread_mutex_unlock(&handles);
    return (nvmlDevice_t)(generation * COUNT(known_uuids) + place + 1); /* NOLINT */
}

static int enter_device(const char *function, nvmlDevice_t handle, int *gpu)
{
    uintptr_t value = (uintptr_t)handle - 1;
    int right = handle && value / COUNT(known_uuids) == generation;
    read_script(); /* a handle's position is the one of now */
    *gpu = right ? find_gpu(known_uuids[value % COUNT(known_uuids)]) : NO_GPU;
    int code = enter_initialised(function, *gpu);
    if (code != SUCCESS)
        return code;
    return !right ? INVALID_ARGUMENT : *gpu == NO_GPU ? GPU_IS_LOST : SUCCESS;
}

/* ---- processes ---- */

struct listing {
    struct process_info *at;
    unsigned room, count;
    bytes_t sum;
};

static void add(struct listing *listing, unsigned pid, bytes_t used)
{
    if (listing->count < listing->room)
        listing->at[listing->count] = (struct process_info){pid, used, FOREVER, FOREVER};
    listing->count++;
    listing->sum += used == NOT_AVAILABLE ? 0 : used;
}

static int lives(pid_t pid)
{
    char path[64], stat[512] = "";
    if (kill(pid, 0) && errno == ESRCH)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    ssize_t own = readlink("/proc/self", stat, sizeof stat - 1);
    FILE *file = own > 0 && atoi(stat) == getpid() ? fopen(path, "re") : NULL;
    if (!file)
        return 1; /* no proc of this PID namespace: the signal's word stands */
    size_t length = fread(stat, 1, sizeof stat - 1, file);
    fclose(file);
    stat[length] = 0;
    const char *end = strrchr(stat, ')');
    return !end || (end[2] != 'Z' && end[2] != 'X');
}

static void add_live_file(struct listing *listing, const char *path, unsigned pid, int gpu, int list)
{
    char line[256], *rest, *name, *used, *kind;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\r\n")] = 0;
        if (!(name = strtok_r(line, " \t", &rest)))
            continue;
        used = word_of(&rest);
        kind = word_of(&rest);
        int where = isdigit((unsigned char)*name) ? (int)number(name) : find_gpu(name);
        int which = kind ? choice(kind, LIST_NAMES, KINDS) : COMPUTE;
        if (where != gpu || (list != which && (list != ALL || which == RAN)))
            continue;
        add(listing, pid, number(used));
        if (which == RAN && listing->count <= listing->room)
            listing->at[listing->count - 1].gpu_instance = (unsigned)number(word_of(&rest));
    }
    if (file)
        fclose(file);
}

/* Read a small file as text; an empty one where it cannot be read. */
static const char *text_of(char *text, size_t room, const char *path)
{
    FILE *file = fopen(path, "re");
    text[file ? fread(text, 1, room - 1, file) : 0] = 0;
    if (file)
        fclose(file);
    return text;
}

/* Name what lies in the folder of NVML_STUB_FILE. */
static const char *beside_script(char *path, size_t room, const char *name)
{
    const char *script_path = getenv("NVML_STUB_FILE");
    const char *slash = strrchr(script_path, '/');
    int length = slash ? (int)(slash - script_path) : 1;
    snprintf(path, room, "%.*s%s", length, slash ? script_path : ".", name);
    return path;
}

/* Return the number here of a process that its pod knows as `pid`; 0 where there is none. Where each
   container has a PID namespace, the sandbox's `pause` has the number 1 as well, and holds nothing. */
static unsigned number_here(unsigned pid, const char *pod)
{
    char path[64], text[4096], *end;
    unsigned found = 0;
    DIR *processes = opendir("/proc");
    for (struct dirent *one; !found && processes && (one = readdir(processes));) {
        unsigned long here = strtoul(one->d_name, &end, 10);
        if (*end || !here)
            continue;
        snprintf(path, sizeof path, "/proc/%lu/status", here);
        char *numbers = strstr(text_of(text, sizeof text, path), "\nNSpid:");
        if (!numbers || !strncmp(text, SANDBOX, strlen(SANDBOX)))
            continue;
        numbers[1 + strcspn(numbers + 1, "\n")] = 0;
        if (strtoul(strrchr(numbers, '\t') + 1, NULL, 10) != pid) /* the innermost namespace's */
            continue;
        snprintf(path, sizeof path, "/proc/%lu/cgroup", here);
        if (strstr(text_of(text, sizeof text, path), pod))
            found = (unsigned)here;
    }
    if (processes)
        closedir(processes);
    return found;
}

/* Add the live processes of a folder; those of a pod, or of our own PID namespace. */
static void add_folder(struct listing *listing, const char *parent, const char *pod, int gpu, int list)
{
    char folder[3072], path[4096], *end;
    snprintf(folder, sizeof folder, "%s/pids", parent);
    DIR *pids = opendir(folder);
    for (struct dirent *one; pids && (one = readdir(pids));) {
        unsigned long pid = strtoul(one->d_name, &end, 10);
        if (*end || !pid)
            continue;
        unsigned here = pod ? number_here((unsigned)pid, pod) : (unsigned)pid;
        if (!here || !lives((pid_t)here))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        add_live_file(listing, path, here, gpu, list);
    }
    if (pids)
        closedir(pids);
}

/* Add the live processes of one list, or with ALL of all of them. */
static void add_live(struct listing *listing, int gpu, int list)
{
    char folder[2048], path[2560], pod[64];
    beside_script(folder, sizeof folder, "");
    add_folder(listing, folder, NULL, gpu, list);
    DIR *pods = *script.pods ? opendir(script.pods) : NULL;
    for (struct dirent *one; pods && (one = readdir(pods));) {
        snprintf(folder, sizeof folder, "%s/%s", script.pods, one->d_name);
        snprintf(path, sizeof path, "%s/pod", folder);
        if (*one->d_name != '.' && *text_of(pod, sizeof pod, path))
            add_folder(listing, folder, pod, gpu, list);
    }
    if (pods)
        closedir(pods);
}

/* The first lines of a function about one GPU: they leave `gpu` behind. */
#define ENTER_DEVICE(function, handle)                                                      \
    int gpu, code = enter_device(function, handle, &gpu);                                   \
    if (code != SUCCESS)                                                                    \
        return code

__attribute__((unused)) static int list_processes( /* without any version of the lists */
    const char *function, enum list list, nvmlDevice_t handle, unsigned *count,
    struct process_info *at)
{
    ENTER_DEVICE(function, handle);
    struct listing listing = {at, at ? *count : 0, 0, 0};
    for (unsigned i = 0; i < script.entry_count; i++) {
        const struct entry *entry = &script.entries[i];
        if (entry->gpu == gpu && entry->list == (int)list && calls >= entry->when.from)
            for (unsigned pid = entry->pid; pid < entry->pid + entry->many; pid++)
                add(&listing, pid, entry->used);
    }
    unsigned live_from = listing.count;
    if (script.live != OFF)
        add_live(&listing, gpu, (int)list);
    for (unsigned i = live_from; i < listing.count && i < listing.room; i++)
        if (script.live != FIGURES)
            listing.at[i].used = script.live == ZEROS ? 0 : NOT_AVAILABLE;
    *count = listing.count;
    return listing.count > listing.room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Drivers from 535.43 to 535.86 end each entry of version 3 with one more field. */
struct wide_info {
    struct process_info info;
    bytes_t protected;
};

__attribute__((unused)) static int list_wide(
    const char *function, enum list list, nvmlDevice_t handle, unsigned *count,
    struct process_info *at)
{
    int branch = 0, release = 0, room = at ? (int)*count : 0;
    int code = list_processes(function, list, handle, count, at);
    sscanf(script.driver, "%d.%d", &branch, &release);
    if (branch == 535 && release >= 43 && release <= 86 && code == SUCCESS)
        for (int i = (int)*count < room ? (int)*count - 1 : room - 1; i >= 0; i--)
            ((struct wide_info *)at)[i] = (struct wide_info){at[i], 4711};
    return code;
}

#define WIDE_FUNCTION(function, list)                                                       \
    int function(nvmlDevice_t handle, unsigned *count, struct process_info *at)             \
    {                                                                                       \
        return list_wide(#function, list, handle, count, at);                               \
    }
#define LIST_FUNCTION(function, list)                                                       \
    int function(nvmlDevice_t handle, unsigned *count, struct process_info *at)             \
    {                                                                                       \
        return list_processes(#function, list, handle, count, at);                          \
    }
#ifndef WITHOUT_V3
WIDE_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
WIDE_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
#ifndef WITHOUT_MPS
WIDE_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)
#endif
#endif
#ifndef WITHOUT_V2
LIST_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE)
LIST_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS)
#ifndef WITHOUT_MPS
LIST_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS)
#endif
#endif

/* ---- limits of cgroups ---- */

struct limit {
    bytes_t soft, hard;
};

/* The cgroups from one up to the root's child; a limit is known by the inode. */
struct chain {
    ino_t at[32];
    int length;
};

static const char *limits_folder(char *path, size_t room)
{
    if (*script.limit.in)
        snprintf(path, room, "%s", script.limit.in);
    else
        beside_script(path, room, "/limits");
    mkdir(path, 0777);
    chmod(path, 0777); /* containers write as whoever they are */
    return path;
}

static int find_in(const char *folder, ino_t wanted, struct chain *chain)
{
    char path[3072];
    struct stat is;
    int found = 0;
    DIR *tree = opendir(folder);
    for (struct dirent *one; !found && tree && (one = readdir(tree));) {
        if (one->d_type != DT_DIR || *one->d_name == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        if (stat(path, &is))
            continue;
        found = is.st_ino == wanted || find_in(path, wanted, chain);
        if (found && chain->length < (int)COUNT(chain->at))
            chain->at[chain->length++] = is.st_ino;
    }
    if (tree)
        closedir(tree);
    return found;
}

/* Find a cgroup in the node's tree; an empty chain is the root. */
static int find_chain(const char *path, struct chain *chain)
{
    struct stat is, root;
    const char *cgroups = *script.limit.cgroups ? script.limit.cgroups : "/sys/fs/cgroup";
    chain->length = 0;
    if (stat(path, &is) || !S_ISDIR(is.st_mode) || stat(cgroups, &root))
        return INVALID_ARGUMENT;
    if (is.st_ino == root.st_ino)
        return SUCCESS;
    return find_in(cgroups, is.st_ino, chain) ? SUCCESS : INVALID_ARGUMENT;
}

static const char *own_cgroup(char *path, size_t room)
{
    char text[4096];
    const char *own = *script.limit.own ? script.limit.own : "/sys/fs/cgroup";
    char *line = strstr(text_of(text, sizeof text, "/proc/self/cgroup"), "0::");
    snprintf(path, room, "%s%s", own, line ? strtok(line + 3, "\n") : "/");
    if (access(path, F_OK))
        snprintf(path, room, "%s", own);
    return path;
}

static int read_limit(ino_t group, int gpu, struct limit *limit)
{
    char folder[2048], path[2304], text[64];
    snprintf(path, sizeof path, "%s/limit-%llu-%s", limits_folder(folder, sizeof folder),
             (bytes_t)group, script.gpus[gpu].uuid);
    return sscanf(text_of(text, sizeof text, path), "%llu %llu", &limit->soft, &limit->hard) == 2;
}

/* Sum what living processes were charged for: a charge's file is locked while its process lives.
   A reader's lock is shared: an exclusive one would make other readers take the process for alive.

   By `owner`: the limit it was charged to, on misc; or any of the cgroups it is in. NULL: everything. */
static bytes_t charged(int gpu, const ino_t *owner, int by_group)
{
    char folder[2048], path[2560], uuid[96], text[1024];
    bytes_t sum = 0;
    DIR *files = opendir(limits_folder(folder, sizeof folder));
    for (struct dirent *one; files && (one = readdir(files));) {
        if (strncmp(one->d_name, "charge-", 7))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        int file = open(path, O_RDWR | O_CLOEXEC), dead = file >= 0 && !flock(file, LOCK_SH | LOCK_NB);
        if (file >= 0)
            close(file);
        if (dead)
            unlink(path);
        bytes_t bytes, limited;
        int at = 0, counts = owner == NULL;
        text_of(text, sizeof text, path);
        if (dead || file < 0 || sscanf(text, "%95s %llu %llu %n", uuid, &bytes, &limited, &at) < 3 ||
            strcmp(uuid, script.gpus[gpu].uuid))
            continue;
        if (owner && !by_group)
            counts = limited == (bytes_t)*owner;
        char *group = text + at, *before = NULL;
        while (owner && by_group && group != before) {
            before = group;
            counts |= strtoull(before, &group, 10) == (bytes_t)*owner;
        }
        sum += counts ? bytes : 0;
    }
    if (files)
        closedir(files);
    return sum;
}

/* Return the nearest of a chain that has a limit, or NULL. */
static const ino_t *nearest(const struct chain *chain, int gpu, struct limit *limit)
{
    for (int i = 0; i < chain->length; i++)
        if (read_limit(chain->at[i], gpu, limit))
            return &chain->at[i];
    return NULL;
}

/* Within a limited cgroup the GPU looks as large as the limit. */
static void limit_memory(int gpu, struct memory_v2 *memory)
{
    char path[4352];
    struct chain chain;
    struct limit limit;
    if (script.limits < MISC || find_chain(own_cgroup(path, sizeof path), &chain))
        return;
    const ino_t *group = nearest(&chain, gpu, &limit);
    if (!group || limit.hard >= memory->total)
        return;
    bytes_t used = charged(gpu, group, script.limits == DMEM);
    bytes_t rest = limit.hard > used ? limit.hard - used : 0;
    *memory = (struct memory_v2){memory->version, limit.hard, 0, rest < memory->free ? rest : memory->free, used};
}

/* CAP_SYS_ADMIN in the first user namespace. */
static int may_set(void)
{
    char text[4096];
    char *line = strstr(text_of(text, sizeof text, "/proc/self/status"), "CapEff:");
    int has = line && strtoull(line + 7, NULL, 16) >> 21 & 1;
    return has && strstr(text_of(text, sizeof text, "/proc/self/uid_map"), "4294967295");
}

static int has_files(const char *path)
{
    char file[4352];
    snprintf(file, sizeof file, "%s/dmem.max", path);
    return script.limit.enabled == 1 || !access(file, F_OK);
}

static int enter_limits(const char *path, int gpu, struct chain *chain)
{
    if (script.limits == BEFORE_R615)
        return FUNCTION_NOT_FOUND;
    if (script.limits == SWITCHED_OFF || script.gpus[gpu].is.mig == 1)
        return NOT_SUPPORTED;
    int code = path ? find_chain(path, chain) : INVALID_ARGUMENT;
    if (code == SUCCESS && !chain->length)
        return NOT_SUPPORTED;
    return code == SUCCESS && script.limits == DMEM && !has_files(path) ? NOT_FOUND : code;
}

struct set_limits {
    const char *path;
    bytes_t soft, hard;
};
struct get_limits {
    const char *path;
    bytes_t soft, hard, used;
};

int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, const struct set_limits *set)
{
    char folder[2048], path[2304], new[2368];
    struct chain chain;
    struct limit before;
    ENTER_DEVICE(__func__, handle);
    if (script.limits != BEFORE_R615 && !may_set())
        return NO_PERMISSION;
    if ((code = enter_limits(set->path, gpu, &chain)) != SUCCESS)
        return code;
    const ino_t *group = &chain.at[0];
    int had = read_limit(*group, gpu, &before);
    if (set->soft > set->hard ||
        (script.limits == MISC && had && set->hard < before.hard && set->hard < charged(gpu, group, 0)))
        return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "%s/limit-%llu-%s", limits_folder(folder, sizeof folder),
             (bytes_t)*group, script.gpus[gpu].uuid);
    snprintf(new, sizeof new, "%s.%d", path, getpid());
    FILE *file = fopen(new, "we");
    if (!file)
        die("no folder for limits", folder);
    fprintf(file, "%llu %llu\n", set->soft, set->hard);
    fclose(file);
    rename(new, path);
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, struct get_limits *get)
{
    struct chain chain;
    struct limit limit = {0, NOT_AVAILABLE};
    ENTER_DEVICE(__func__, handle);
    if ((code = enter_limits(get->path, gpu, &chain)) != SUCCESS)
        return code;
    const ino_t *group = &chain.at[0];
    if (script.limits == DMEM)
        read_limit(*group, gpu, &limit);
    else if (!(group = nearest(&chain, gpu, &limit)))
        return NOT_SUPPORTED;
    get->soft = limit.soft;
    get->hard = limit.hard;
    get->used = charged(gpu, group, script.limits == DMEM);
    return SUCCESS;
}

/* ---- what processes did ---- */

struct utilization {
    unsigned pid;
    bytes_t at_us;
    unsigned sm, memory, encoder, decoder;
};

int nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, struct utilization *at, unsigned *count,
                                    bytes_t since_us)
{
    struct process_info live[256];
    struct utilization found[256];
    unsigned many = 0;
    struct timespec now;
    ENTER_DEVICE(__func__, handle);
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned i = 0; i < script.sample_count; i++) {
        const struct sample *one = &script.samples[i];
        bytes_t at_us = ((bytes_t)now.tv_sec - one->ago_s) * 1000000;
        if (one->gpu == gpu && at_us > since_us)
            found[many++] = (struct utilization){one->pid, at_us, one->percent, one->percent, 0, 0};
    }
    struct listing listing = {live, COUNT(live) - COUNT(script.samples), 0, 0};
    add_live(&listing, gpu, RAN);
    for (unsigned i = 0; i < listing.count && i < listing.room; i++) {
        bytes_t at_us = (bytes_t)live[i].gpu_instance * 1000000;
        unsigned percent = (unsigned)live[i].used;
        if (at_us > since_us)
            found[many++] = (struct utilization){live[i].pid, at_us, percent, percent, 0, 0};
    }
    if (!many)
        return NOT_FOUND;
    unsigned room = at ? *count : 0;
    *count = many;
    if (room < many)
        return INSUFFICIENT_SIZE;
    memcpy(at, found, many * sizeof *at);
    return SUCCESS;
}

/* ---- libcuda.so.1: its first GPU, one thread ---- */

#define OUT_OF_MEMORY 2
#define NO_DEVICE 100
#define NOT_INITIALISED 3

static struct {
    pid_t creator;
    struct chain chain; /* the creator's */
    bytes_t held, sizes[256];
    ino_t charged_to[256];
    int charges[33]; /* open files: one per limit that was charged, and one for none */
    ino_t limited[33];
    unsigned charge_count;
} client;

static void list_client(void)
{
    char folder[2048], path[2304], new[2368];
    beside_script(folder, sizeof folder, "/pids");
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    snprintf(new, sizeof new, "%s/new.%d", folder, getpid());
    FILE *file = fopen(new, "we");
    if (!file)
        die("no folder for processes", folder);
    fprintf(file, "%s %llu\n", script.gpus[0].uuid, client.held + script.limit.context);
    fclose(file);
    rename(new, path);
}

/* Add to what is charged to a limit, or to none (0); its file is ours until we end. */
static void charge(ino_t limited, long long bytes)
{
    char folder[2048], name[64], path[2304], new[2304], text[1024] = "";
    unsigned place = 0;
    while (place < client.charge_count && client.limited[place] != limited)
        place++;
    if (place == client.charge_count) {
        limits_folder(folder, sizeof folder);
        snprintf(name, sizeof name, "%d-%lld-%llu", getpid(),
                 (long long)time(NULL) * 1000 + random() % 1000,
                 (bytes_t)(limited ? limited : client.chain.at[0]));
        snprintf(path, sizeof path, "%s/charge-%s", folder, name);
        snprintf(new, sizeof new, "%s/new-%s", folder, name); /* who sums finds none unlocked */
        client.charges[place] = open(new, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (client.charges[place] < 0 || flock(client.charges[place], LOCK_EX) || rename(new, path))
            die("no folder for charges", path);
        client.limited[place] = limited;
        client.charge_count++;
    }
    int file = client.charges[place];
    bytes_t before = 0;
    if (pread(file, text, sizeof text - 1, 0) > 0)
        sscanf(text, "%*s %llu", &before);
    int length = snprintf(text, sizeof text, "%s %llu %llu ", script.gpus[0].uuid,
                          (bytes_t)((long long)before + bytes), (bytes_t)limited);
    for (int i = 0; limited && i < client.chain.length; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%llu ",
                           (bytes_t)client.chain.at[i]);
    if (ftruncate(file, 0) || pwrite(file, text, (size_t)length, 0) != length)
        die("a charge cannot be written", script.gpus[0].uuid);
}

/* Say whether so much more may be allocated, and to which limit it is charged: 0 for none. */
static int may_allocate(bytes_t bytes, ino_t *limited)
{
    struct limit limit;
    const struct options *is = &script.gpus[0].is;
    *limited = 0;
    if (charged(0, NULL, 0) + bytes + is->used + is->reserved > is->total)
        return 0;
    if (script.limits < MISC || (client.creator != getpid() && kill(client.creator, 0)))
        return 1;
    if (script.limits == MISC) {
        const ino_t *group = nearest(&client.chain, 0, &limit);
        *limited = group ? *group : 0;
        return !group || (limit.hard >= bytes && charged(0, group, 0) <= limit.hard - bytes);
    }
    for (int i = 0; i < client.chain.length; i++)
        if (read_limit(client.chain.at[i], 0, &limit) &&
            (limit.hard < bytes || charged(0, &client.chain.at[i], 1) > limit.hard - bytes))
            return 0;
    *limited = client.chain.length ? client.chain.at[0] : 0;
    return 1;
}

static int enter_cuda(const char *function)
{
    return enter(function, 0) == SUCCESS && script.gpu_count ? SUCCESS : NO_DEVICE;
}

int cuInit(unsigned flags)
{
    char path[4352];
    int code = enter_cuda(__func__);
    (void)flags;
    if (code == SUCCESS && !client.creator) {
        client.creator = getpid();
        if (script.limits >= MISC && find_chain(own_cgroup(path, sizeof path), &client.chain))
            die("our own cgroup is not in the node's tree", path);
    }
    return code;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return client.creator ? enter_cuda(__func__) : NOT_INITIALISED;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int one;
    (void)device;
    *context = &one;
    int code = enter_cuda(__func__);
    if (code == SUCCESS)
        list_client();
    return code;
}

int cuCtxSetCurrent(void *context)
{
    return context ? enter_cuda(__func__) : NOT_INITIALISED;
}

int cuCtxSynchronize(void)
{
    return enter_cuda(__func__);
}

int cuMemsetD8_v2(bytes_t address, unsigned char value, size_t bytes)
{
    (void)address, (void)value, (void)bytes;
    return enter_cuda(__func__);
}

int cuMemAlloc_v2(bytes_t *address, size_t bytes)
{
    char folder[2048], path[2304];
    ino_t limited;
    int code = enter_cuda(__func__), place = 0;
    if (code != SUCCESS)
        return code;
    while (place < (int)COUNT(client.sizes) && client.sizes[place])
        place++;
    snprintf(path, sizeof path, "%s/lock", limits_folder(folder, sizeof folder));
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0 || flock(lock, LOCK_EX) || place == (int)COUNT(client.sizes))
        die("no lock, or too many allocations", path);
    code = may_allocate(bytes, &limited) ? SUCCESS : OUT_OF_MEMORY;
    if (code == SUCCESS) {
        charge(limited, (long long)bytes);
        client.sizes[place] = bytes;
        client.charged_to[place] = limited;
        client.held += bytes;
        *address = (bytes_t)place + 1;
        list_client();
    }
    close(lock);
    return code;
}

int cuMemFree_v2(bytes_t address)
{
    int code = enter_cuda(__func__);
    bytes_t *size = &client.sizes[(address - 1) % COUNT(client.sizes)];
    if (code != SUCCESS || !*size)
        return code ? code : INVALID_ARGUMENT;
    charge(client.charged_to[address - 1], -(long long)*size);
    client.held -= *size;
    *size = 0;
    list_client();
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *rest, size_t *total)
{
    struct memory_v2 memory = {0};
    int code = enter_cuda(__func__);
    const struct options *is = &script.gpus[0].is;
    bytes_t held = charged(0, NULL, 0) + is->used, whole = is->total - is->reserved;
    memory.total = whole;
    memory.free = whole > held ? whole - held : 0;
    if (code == SUCCESS)
        limit_memory(0, &memory);
    *rest = memory.free;
    *total = memory.total;
    return code;
}

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned flags)
{
    int code = enter(__func__, NO_GPU);
    (void)flags;
    __atomic_add_fetch(&initialised, code == SUCCESS, __ATOMIC_SEQ_CST);
    return code;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    int code = enter_initialised(__func__, NO_GPU);
    if (code == SUCCESS && __atomic_sub_fetch(&initialised, 1, __ATOMIC_SEQ_CST) == 0)
        generation++;
    return code;
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}

static int answer(char *to, unsigned room, const char *text)
{
    if (strlen(text) >= room)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned room)
{
    int code = enter_initialised(__func__, NO_GPU);
    return code != SUCCESS ? code : answer(version, room, script.driver);
}

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned room)
{
    int code = enter_initialised(__func__, NO_GPU);
    return code != SUCCESS ? code : pid ? answer(name, room, "process") : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = enter_initialised(__func__, NO_GPU);
    *count = script.gpu_count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    int code = enter_initialised(__func__, (int)index);
    if (code == SUCCESS && index >= script.gpu_count)
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        *handle = handle_of((int)index);
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    read_script();
    int gpu = find_gpu(uuid), code = enter_initialised(__func__, gpu);
    if (code == SUCCESS && gpu == NO_GPU)
        code = NOT_FOUND;
    if (code == SUCCESS)
        *handle = handle_of(gpu);
    return code;
}

int nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned room)
{
    ENTER_DEVICE(__func__, handle);
    return answer(uuid, room, script.gpus[gpu].uuid);
}

int nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned room)
{
    ENTER_DEVICE(__func__, handle);
    return answer(name, room, script.gpus[gpu].is.name);
}

static int look_at_memory(const char *function, nvmlDevice_t handle, struct memory_v2 *memory)
{
    ENTER_DEVICE(function, handle);
    const struct options *is = &script.gpus[gpu].is;
    struct listing live = {NULL, 0, 0, 0};
    if (script.live != OFF)
        add_live(&live, gpu, ALL);
    bytes_t used = is->used + live.sum, taken = used + is->reserved;
    bytes_t rest = is->total > taken ? is->total - taken : 0;
    *memory = (struct memory_v2){memory->version, is->total, is->reserved, rest, used};
    limit_memory(gpu, memory);
    return SUCCESS;
}

/* Since R510, version 1 counts what is reserved as used. */
int nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, struct memory_v1 *memory)
{
    struct memory_v2 all = {0};
    int code = look_at_memory(__func__, handle, &all);
    if (code == SUCCESS)
        *memory = (struct memory_v1){all.total, all.free, all.used + all.reserved};
    return code;
}

#ifndef WITHOUT_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, struct memory_v2 *memory)
{
    if (memory->version != (sizeof *memory | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    return look_at_memory(__func__, handle, memory);
}
#endif

int nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(__func__, handle);
    *current = *pending = (unsigned)script.gpus[gpu].is.mig;
    return script.gpus[gpu].is.mig == NOT_AVAILABLE ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned *mode)
{
    ENTER_DEVICE(__func__, handle);
    *mode = (unsigned)script.gpus[gpu].is.compute;
    return script.gpus[gpu].is.compute == NOT_AVAILABLE ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetVirtualizationMode(nvmlDevice_t handle, unsigned *mode)
{
    ENTER_DEVICE(__func__, handle);
    *mode = (unsigned)script.gpus[gpu].is.virtual;
    return script.gpus[gpu].is.virtual == NOT_AVAILABLE ? NOT_SUPPORTED : SUCCESS;
}

/* ---- broken GPUs ---- */

#ifndef WITHOUT_HEALTH
#define RECOVERY_ACTION 230
#define UNSIGNED_INT 1

struct field_value {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union {
        unsigned number;
        bytes_t wide;
    } value;
};

int nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, struct field_value *values)
{
    ENTER_DEVICE(__func__, handle);
    for (int i = 0; i < count; i++) {
        bytes_t recovery = script.gpus[gpu].is.recovery;
        int offered = values[i].field == RECOVERY_ACTION && recovery != NOT_AVAILABLE;
        values[i].type = UNSIGNED_INT;
        values[i].code = offered ? SUCCESS : NOT_SUPPORTED;
        values[i].value.wide = recovery;
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed)
{
    ENTER_DEVICE(__func__, handle);
    bytes_t remap = script.gpus[gpu].is.remap;
    *correctable = *uncorrectable = 0;
    *pending = remap & 1;
    *failed = remap >> 1 & 1;
    return remap == NOT_AVAILABLE ? NOT_SUPPORTED : SUCCESS;
}

#endif

/* GPUs here have no MIG instances to tell of. */
#define NO_INSTANCE(function, code_of_it, ...)                                              \
    int function(nvmlDevice_t handle, __VA_ARGS__)                                          \
    {                                                                                       \
        ENTER_DEVICE(#function, handle);                                                    \
        (void)to;                                                                           \
        return code_of_it;                                                                  \
    }
NO_INSTANCE(nvmlDeviceGetMaxMigDeviceCount, (*to = 0, SUCCESS), unsigned *to)
NO_INSTANCE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, INVALID_ARGUMENT, nvmlDevice_t *to)
NO_INSTANCE(nvmlDeviceGetGpuInstanceId, NOT_SUPPORTED, unsigned *to)
NO_INSTANCE(nvmlDeviceGetComputeInstanceId, NOT_SUPPORTED, unsigned *to)
NO_INSTANCE(nvmlDeviceGetMigDeviceHandleByIndex, NOT_FOUND + 0 * (int)at, unsigned at, void **to)

/* ---- what NVIDIA's container toolkit asks besides ---- */

int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is)
{
    ENTER_DEVICE(__func__, handle);
    *is = 0;
    return SUCCESS;
}

int nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    ENTER_DEVICE(__func__, handle);
    *index = (unsigned)gpu;
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor)
{
    ENTER_DEVICE(__func__, handle);
    *minor = script.gpus[gpu].minor;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, struct pci_info *pci)
{
    ENTER_DEVICE(__func__, handle);
    *pci = (struct pci_info){.bus = script.gpus[gpu].minor + 1};
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}
