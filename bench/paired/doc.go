// Package paired reports whether a change made something slower, from pairs of measurements: an
// older build and this one, taken in turns, so that what disturbs the machine meets both. It
// implements --before of `sluice-bench compare` and `sluice-bench pipeline`:
//
//	binary    the older build: is it what it must be?
//	interval  a confidence interval of the median of the pairs' ratios
//	verdict   what the interval says of a bound
//	table     all of it, for people
//
// # What a pair is
//
// A sample is the ratio now/before of two measurements that lie side by side; which of both comes
// first alternates, so that neither a drift nor the place in the pair counts for one of them. Each
// pair is of processes of its own: where a process's memory lies changes its speed by percents for
// as long as it runs (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously
// Wrong!", ASPLOS 2009), so a thousand turns of one pair of processes are one sample of that, and
// not a thousand (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013: repeat
// at the highest level that varies).
//
// # The interval
//
// Of n sorted samples, the k-th smallest and the k-th largest enclose the median of what they are
// drawn from unless fewer than k samples lie on one side of it: with probability 1 - 2 P(B < k),
// where B is binomial of n and 1/2. That is exact for any distribution, however skewed or
// heavy its tails, and needs no estimate of a variance (H. A. David and H. N. Nagaraja, Order
// Statistics, 3rd edition, section 7.1; it inverts the sign test). It does assume that pairs are
// independent of each other. The interval here is the narrowest of these that has 95 % at least;
// with fewer than 6 samples there is none.
//
// # The verdict
//
// The bound is 3 %: a rate of 0.97 of before's, or a cost of 1/0.97. An interval that is all below
// it is slower. One that includes it or better is unchanged, provided that it says something: if it
// reaches twice as far below (0.97 squared), a change of the size that is looked for would hide in
// it, and the verdict is that repetitions are too few. Noise makes intervals wide, and so leads to
// that verdict, not to one of the others.
package paired
