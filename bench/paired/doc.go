// Package paired decides whether a change made something slower, from pairs of measurements: an
// older build and this one, taken in turn, so that disturbances of the machine affect both. It
// implements --before of `sluice-bench compare` and `sluice-bench pipeline`:
//
//	binary    the older build, and the check that it is one
//	interval  a confidence interval of the median of the pairs' ratios
//	verdict   the comparison of the interval with a bound
//	table     the output
//
// # Pairs
//
// A sample is the ratio now/before of two adjacent measurements. The order within the pair
// alternates, so that neither a drift nor the position in the pair favours one of them. Each pair
// has its own processes: the placement of a process's memory changes its speed by some percent for
// as long as it runs (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously
// Wrong!", ASPLOS 2009), so a thousand turns of one pair of processes are one sample of this
// effect, and not a thousand (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM
// 2013: repeat at the highest level that varies).
//
// # The interval
//
// Of n sorted samples, the k-th smallest and the k-th largest enclose the median of the
// distribution unless fewer than k samples lie on one side of it: with probability 1 - 2 P(B < k),
// where B is binomial with parameters n and 1/2. This is exact for any distribution, however skewed
// or heavy-tailed, and needs no estimate of a variance (H. A. David and H. N. Nagaraja, Order
// Statistics, 3rd edition, section 7.1; it inverts the sign test). It assumes that pairs are
// independent of each other. This package uses the narrowest such interval with a confidence of at
// least 95 %; with fewer than 6 samples there is none.
//
// # The verdict
//
// The bound is 3 %: a rate of 0.97 of the older build's, or a cost of 1/0.97. If the whole interval
// is below the bound, the verdict is slower. If the interval includes the bound or better values,
// the verdict is unchanged, provided that the interval is narrow enough: if it reaches twice as far
// below (0.97 squared), a change of the size in question could be hidden in it, and the verdict is
// too few repetitions. Noise widens intervals, and so leads to that verdict, not to another.
package paired
