// Package replication joins a gateway's flow table and its workers to the streams of a group: it
// reports changes of the gateway's own flows to the Ledger, and keeps the copies of other gateways'
// flows in the table.
//
//	worker ── flowtable.Table.Changed, copies.Board ──► Flows ──► group.Ledger ──► session.Sender
//	       ◄── flowtable.Handle.Answer, Board ────────        ◄── group.Copies ◄── session.Receiver
//
// Use, once for each gateway:
//
//	f, err := replication.New(Config{...})    the table is open, and no worker runs yet
//	fastpath.Config.Copies = f.Board()        for each worker
//	x := exchange.New(exchange.Config{
//	    Ledger: f.Ledger(), Step: f.Step, Now: the same clock,
//	    Peers: for each other gateway i
//	        session.Owner{Ledger: f.Ledger(), Flows: f, Member: group.Member(i), ...}
//	        session.Member{Copies: f.Copies(i), Read: f.ReadCopy, ...}
//	})
//	f.Attach(x)                               before workers run and before x.Run
//	go x.Run(ctx)
//
// Later, Add adds another gateway, here and in the Exchange, and Remove removes one; when the last
// copy of a removed gateway has ended, Free frees its number.
//
// All methods are for the goroutine of Exchange.Run (Exchange.Do), except New, Attach, Board and
// Unprotected.
package replication
