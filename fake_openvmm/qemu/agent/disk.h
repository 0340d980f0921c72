/* What an image says of itself: the superblock of an EROFS, the header of a GPT. */
#ifndef NVX_DISK_H
#define NVX_DISK_H

#include <stddef.h>
#include <stdint.h>

enum { UUID_TEXT = 37 };

/* Gives 0 and the UUID as text; else why there is none. */
const char *erofs_uuid(int fd, char uuid[UUID_TEXT]);
const char *ext4_uuid(int fd, char uuid[UUID_TEXT]);

/* Reads the primary header at the second logical block and its entries, CRCs included; gives NULL, the disk's GUID and
   the number of the first used entry, from 1; else what is wrong. */
const char *gpt_disk(int fd, unsigned block, char guid[UUID_TEXT], unsigned *partition);

#endif
