// SPDX-License-Identifier: GPL-2.0-only
/* The config page, copied once and checked: every offset is then inside its region. */
#include <linux/io.h>
#include <linux/log2.h>
#include <linux/sizes.h>

#include "module.h"

/* Copies the page word by word: its loads may trap. */
void ht_read_config(struct ht_config *config, const void __iomem *page)
{
	u64 *words = (u64 *)config;
	unsigned int i;

	static_assert(sizeof(struct ht_config) == HT_CONFIG_BYTES);
	for (i = 0; i < sizeof(*config) / HT_WORD; i++)
		words[i] = readq(page + i * HT_WORD);
}

static bool is_size(u64 size, u64 least, u64 most)
{
	return is_power_of_2(size) && size >= least && size <= most;
}

/* Returns null and fills the geometry, or returns why the page is none. */
const char *ht_check_config(const struct ht_config *config, struct ht_geometry *geometry)
{
	struct ht_geometry g = {};
	int i;

	if (config->magic != HT_MAGIC)
		return "no hypertrace device: its magic is another";
	if (config->version != HT_VERSION)
		return "unknown version of the interface";
	if (config->ring_mode != HT_DISCARD && config->ring_mode != HT_OVERWRITE)
		return "unknown ring mode";
	if (!config->max_clients || config->max_clients > 1024)
		return "clients must be 1 to 1024";
	if (!config->client_args || config->client_args > 16)
		return "arguments must be 1 to 16";
	if (!is_size(config->ring_size, SZ_4K, SZ_4G) ||
	    !is_size(config->schema_size, SZ_4K, SZ_16M) ||
	    !is_size(config->block_size, SZ_256, SZ_1M) ||
	    config->block_size > config->ring_size / 16)
		return "a size is out of bounds";

	g.clients = config->max_clients;
	g.block_words = config->block_size / HT_WORD;
	g.ring_words = config->ring_size / HT_WORD;
	g.schema_words = config->schema_size / HT_WORD;
	g.client_stride = 2 * HT_PAGE + config->schema_size + config->ring_size;
	g.kick = ALIGN((u64)g.clients * HT_WORD, HT_PAGE);
	g.control_pages = g.kick + HT_PAGE;
	g.used[HT_CONFIG] = HT_PAGE;
	g.used[HT_DATA] =
		ALIGN(g.clients * config->client_args * HT_LEGACY_SLOT_STRIDE_PER_ARG, HT_PAGE);
	g.used[HT_CONTROL] = g.control_pages + (u64)g.clients * HT_PAGE;
	g.used[HT_RINGS] = HT_MASK_BYTES + g.clients * g.client_stride;
	if (g.used[HT_RINGS] > SZ_1G * 1024ULL)
		return "the rings of all clients are too large";
	for (i = 0; i < HT_REGIONS; i++) {
		g.offset[i] = g.window;
		g.window += max_t(u64, roundup_pow_of_two(g.used[i]), HT_MIN_BAR);
	}
	*geometry = g;
	return NULL;
}
