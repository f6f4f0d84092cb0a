/*
 * Sorts numbers with qsort and with a binary tree. The argument is the number of numbers. The tree's
 * functions are recursive, so the program spends much of its time in calls of short functions.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define APART __attribute__((noinline, noclone))

struct node {
	uint32_t key;
	struct node *below[2];
};

static APART int compare(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a;
	uint32_t right = *(const uint32_t *)b;

	return (left > right) - (left < right);
}

static APART struct node *insert(struct node *tree, struct node *new)
{
	if (!tree)
		return new;
	struct node **side = &tree->below[new->key > tree->key];

	*side = insert(*side, new);
	return tree;
}

static APART uint64_t sum(const struct node *tree)
{
	return tree ? sum(tree->below[0]) + tree->key + sum(tree->below[1]) : 0;
}

int main(int argc, char **argv)
{
	size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
	struct node *nodes = calloc(count, sizeof(*nodes));
	uint32_t *numbers = calloc(count, sizeof(*numbers));
	struct node *tree = NULL;
	uint32_t random = 1;

	if (!nodes || !numbers)
		return 1;
	for (size_t i = 0; i < count; i++) {
		random = random * 1664525 + 1013904223;
		nodes[i].key = numbers[i] = random;
		tree = insert(tree, &nodes[i]);
	}
	qsort(numbers, count, sizeof(*numbers), compare);
	printf("%u %llu\n", numbers[0], (unsigned long long)sum(tree));
	return 0;
}
