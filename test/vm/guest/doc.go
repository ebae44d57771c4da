// Package guest tries the gateway on emulated NICs, inside a guest of test/vm: the real daemon,
// between real TCP and UDP stacks.
//
//	client0 [eth0] ─ bridge ─ [left-peer] ═══ hub ═══ [left] gateway
//	backend0, 1    ─ bridge ─ [right-peer] ══ hub ══ [right] gateway
//
// left and right have the drivers of real NICs. What is tried is a list of cases, in order, on one
// network and one daemon: each finds the gateway as the one before left it. After all of them both
// laws must hold exactly, no host may have received a damaged packet, and the daemon must take
// everything with it.
//
// The processor is emulated, so every bound of time is multiplied by Config.Patience. No case
// measures speed.
package guest
