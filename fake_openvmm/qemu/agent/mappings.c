/* A direct guest's table of mappings. There is no shared file system on this machine: the table is held to every rule
   that needs none and reported, and nothing is mounted. */
#include "guest.h"

enum { MOST_MAPPINGS = 4096 };

static uint32_t applied, requests;
static int failed;

/* The test adapter's guest takes a table without its number having been announced, with layers too. */
static int is_open(void) { return boot.adapter && !boot.tokens.mappings; }

int mappings_complete(void) { return !failed && (is_open() || applied == boot.tokens.mappings); }

int mappings_follow(uint32_t first, uint32_t count) {
    uint32_t most = is_open() ? MOST_MAPPINGS : boot.tokens.mappings;
    return !failed && first == applied && count <= most - applied;
}

void mappings_begin(void) { requests++; }

int mappings_add(const struct nvxc_mapping *mapping) {
    int refused = machine_number("refuse_mapping", 0) == (long)applied + 1 || machine_number("refuse_maps", 0) == (long)requests;
    struct text line = {0};
    report_begin(&line, refused ? "map_refused" : "map");
    report_number(&line, "index", applied);
    report_text(&line, "source", mapping->source.at, mapping->source.length);
    report_text(&line, "target", mapping->target.at, mapping->target.length);
    text_format(&line, ",\"readOnly\":%s", mapping->read_only ? "true" : "false");
    int status = refused ? (int)machine_number("refuse_status", 13) : 0;
    if (refused)
        report_number(&line, "status", status);
    report_end(&line);
    failed |= refused;
    applied += !refused;
    return status;
}
