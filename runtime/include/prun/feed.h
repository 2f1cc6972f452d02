/* The ring of a feed: batches that another process writes into shared memory and the ranks of a job read.
 *
 * File: /dev/shm/prun-feed-UID-NAME, where UID is the user's number. All numbers are little-endian.
 *
 *     header (PRUN_FEED_HEADER bytes) | slot 0 | slot 1 | ... | slot slots - 1
 *     slot: prun_feed_slot (PRUN_FEED_SLOT_HEADER bytes) | input 0 | input 1 | ..., each from `offset` bytes after the
 *           slot's begin: [batch, dims] in C order
 *
 * The feeder creates the file under another name, fills in the header, takes a POSIX lock (fcntl F_SETLK, F_WRLCK) on
 * its first byte, which it holds to its end, and renames the file. Then it waits until `attached` changes: `samples`
 * and `cursor` now state where the job begins, and batch 0 is the first one after them. For each batch k = 0, 1, ... it
 * waits until each of the `ranks` numbers `taken` exceeds k - slots, writes slot k % slots with number = k, the batch
 * and check = ~k, in this order, and then sets made = k + 1. If `attached` changes again, it begins anew from the new
 * position, with batch 0. A feeder without further batches sets state = PRUN_FEED_ENDED; one that fails writes
 * `message` and sets state = PRUN_FEED_FAILED. A feeder whose lock is free has died.
 */
#ifndef PRUN_FEED_H
#define PRUN_FEED_H

#include <stdint.h>

#define PRUN_FEED_MAGIC "prunfeed"
#define PRUN_FEED_VERSION 1
#define PRUN_FEED_HEADER 16384
#define PRUN_FEED_SLOT_HEADER 512
#define PRUN_FEED_TEXT 256   /* bytes of a cursor or message, with its end of zero */
#define PRUN_FEED_INPUTS 32  /* at most */
#define PRUN_FEED_RANKS 1024 /* at most */
#define PRUN_FEED_DIMS 8     /* at most */

enum { PRUN_FEED_FEEDS = 0, PRUN_FEED_ENDED = 1, PRUN_FEED_FAILED = 2 };

typedef struct prun_feed_input {
  char name[32];
  char element[8]; /* u8, u16, u32, i32, i64, f16, bf16, f32 or f64 */
  uint64_t offset; /* in a slot, a multiple of 64 */
  uint64_t dim_count;
  uint64_t dims[PRUN_FEED_DIMS]; /* of a sample */
} prun_feed_input;               /* 120 bytes */

typedef struct prun_feed_header {
  char magic[8];
  uint32_t version, input_count;
  uint64_t batch; /* samples in a slot: the job's global batch */
  uint64_t slots, slot_bytes;
  char fingerprint[64];         /* identifies the data set; a cursor is valid only for the same one */
  uint64_t made;                /* atomic, by the feeder: batches written since the job attached */
  uint32_t state;               /* atomic, by the feeder: PRUN_FEED_... */
  uint32_t attached;            /* atomic, by the job: raised when it attaches, after the fields below */
  char message[PRUN_FEED_TEXT]; /* by the feeder: why it failed */
  uint64_t samples;             /* by the job: samples that it has consumed */
  char cursor[PRUN_FEED_TEXT];  /* by the job: the cursor of the last of them, "" = unknown */
  uint32_t ranks, answered;     /* by the job; atomic, by the feeder: the value of `attached` that `made` belongs to */
  uint64_t reserved[4];
  prun_feed_input inputs[PRUN_FEED_INPUTS];
  uint64_t taken[PRUN_FEED_RANKS]; /* atomic, by the ranks: batches that each has read */
} prun_feed_header;

typedef struct prun_feed_slot {
  uint64_t number;
  uint64_t check;              /* ~number, written after the batch */
  char cursor[PRUN_FEED_TEXT]; /* position after this batch, text of the feeder's own */
} prun_feed_slot;

#endif
