package services

import "testing"

func TestSchedulerNames(t *testing.T) {
	for s := range NumSchedulers {
		got, ok := ParseScheduler(s.String())
		if got != s || !ok || SchedulerNames()[s] != s.String() || s.String() == "" {
			t.Errorf("%d is %q, which is %d", s, s, got)
		}
	}
	if s, ok := ParseScheduler("wlcx"); ok || s != Maglev {
		t.Errorf("an unknown name is %v, %v", s, ok)
	}
	if LeastConn.String() != "lc" || Random.String() != "random" || NeverQueue.String() != "nq" {
		t.Error("names are not those of ipvsadm(8)")
	}
}
