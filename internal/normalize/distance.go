package normalize

// maxCompared bounds the length in octets of what distance compares. No provider's domain is half as long.
const maxCompared = 48

// distance returns the number of edits between two texts in ASCII, an edit being one character put in, left
// out or replaced, or two neighbours swapped, and no character being edited twice (optimal string alignment).
// Anything above limit, and anything with a text of more than maxCompared octets, comes back as limit+1.
func distance(a, b string, limit int) int {
	if len(a) > maxCompared || len(b) > maxCompared || len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	// Both texts mostly share their ends.
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var rows [3][maxCompared + 1]uint8
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = uint8(j)
	}
	for i := 1; i <= len(a); i++ {
		row[0] = uint8(i)
		least := row[0]
		for j := 1; j <= len(b); j++ {
			n := min(last[j], row[j-1]) + 1
			if a[i-1] == b[j-1] {
				n = min(n, last[j-1])
			} else {
				n = min(n, last[j-1]+1)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					n = min(n, before[j-2]+1)
				}
			}
			row[j] = n
			least = min(least, n)
		}
		if int(least) > limit { // it only grows from here
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return min(int(last[len(b)]), limit+1)
}
