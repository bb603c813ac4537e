package main

import "testing"

func TestFind(t *testing.T) {
	cases := map[string]struct {
		text string
		want []string
	}{
		"nothing":                       {"Your order 4711 is on its way.", nil},
		"e-mail":                        {"Write to jo.doe+x@mail.example.org.", []string{"j…@mail.example.org"}},
		"e-mail of another script":      {"Пишите: имя@почта.рф", []string{"и…@почта.рф"}},
		"card":                          {"4111111111111111", []string{"…1111"}},
		"card in groups":                {"5500-0000 0000-0004", []string{"…0004"}},
		"card after another number":     {"Item 12 4111 1111 1111 1111", []string{"…1111"}},
		"two cards in a row":            {"4111111111111111 5500000000000004", []string{"…1111", "…0004"}},
		"sixteen digits that are none":  {"4111 1111 1111 1112", nil},
		"the longest numbers are cards": {"6304000000000000000", []string{"…0000"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, finding := range find(c.text, []string{"email", "card"}) {
				got = append(got, finding.Masked)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, wanted %q", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("got %q, wanted %q", got, c.want)
				}
			}
		})
	}
}
