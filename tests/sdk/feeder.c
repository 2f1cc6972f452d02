/* A feeder in C: x [8, 4] of float32 and y [8, 1] with y = sum of x, for the plan feeder.lua beside this file.
 * cc -I INCLUDE feeder.c -o feeder && ./feeder NAME & prun feeder.lua --set name=NAME */
#define _GNU_SOURCE
#include <fcntl.h>
#include <prun/feed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 8, WIDTH = 4, SLOTS = 4, X = 512, Y = 640, SLOT_BYTES = 704, BATCHES = 1000 };
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELEASE)
#define GET(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)

/* Returns whether a lock of this byte was free, and takes it. */
static int locks(int file, int byte, short type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  return fcntl(file, F_SETLK, &lock) == 0;
}

static int job_ends(int file) {
  if (!locks(file, 1, F_WRLCK)) return 0;
  locks(file, 1, F_UNLCK);
  return 1;
}

static void declare(prun_feed_input* input, const char* name, uint64_t offset, uint64_t size) {
  strcpy(input->name, name);
  strcpy(input->element, "f32");
  input->offset = offset, input->dim_count = 1, input->dims[0] = size;
}

static int has_room(prun_feed_header* head, uint64_t batch) {
  for (uint32_t rank = 0; rank < head->ranks; ++rank)
    if (batch >= SLOTS && GET(head->taken[rank]) <= batch - SLOTS) return 0;
  return 1;
}

int main(int count, char** arguments) {
  char path[200], part[210];
  if (count != 2) return fprintf(stderr, "feeder NAME\n"), 2;
  snprintf(path, sizeof path, "/dev/shm/prun-feed-%u-%s", getuid(), arguments[1]);
  snprintf(part, sizeof part, "%s.part", path);
  const int file = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const size_t bytes = PRUN_FEED_HEADER + SLOTS * SLOT_BYTES;
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0) return perror(part), 1;
  char* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return perror("mmap"), 1;
  prun_feed_header* head = (prun_feed_header*)memory;
  memcpy(head->magic, PRUN_FEED_MAGIC, 8);
  head->version = PRUN_FEED_VERSION, head->input_count = 2;
  head->batch = BATCH, head->slots = SLOTS, head->slot_bytes = SLOT_BYTES;
  strcpy(head->fingerprint, "sums");
  declare(&head->inputs[0], "x", X, WIDTH);
  declare(&head->inputs[1], "y", Y, 1);
  if (!locks(file, 0, F_WRLCK) || rename(part, path) != 0) return perror(path), 1;

  uint32_t attached = 0;
  uint64_t batch = 0;
  for (;; usleep(50)) {
    if (GET(head->attached) != attached) { /* a job begins, or begins anew */
      attached = GET(head->attached), batch = 0;
      srand((unsigned)(head->samples / BATCH)); /* the position of this feed */
      head->made = 0, head->state = PRUN_FEED_FEEDS;
      SET(head->answered, attached);
    }
    if (attached != 0 && job_ends(file)) break;
    if (attached == 0 || batch == BATCHES || !has_room(head, batch)) continue;
    char* begin = memory + PRUN_FEED_HEADER + batch % SLOTS * SLOT_BYTES;
    prun_feed_slot* slot = (prun_feed_slot*)begin;
    float *x = (float*)(begin + X), *y = (float*)(begin + Y);
    slot->number = batch;
    for (int i = 0; i < BATCH; ++i) {
      y[i] = 0;
      for (int j = 0; j < WIDTH; ++j) y[i] += x[i * WIDTH + j] = (float)rand() / (float)RAND_MAX;
    }
    SET(slot->check, ~batch);
    SET(head->made, ++batch);
    if (batch == BATCHES) SET(head->state, PRUN_FEED_ENDED);
  }
  unlink(path);
  return 0;
}
