package access

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyAddressesOfThisMachineCountAsItsOwn(t *testing.T) {
	cases := map[string]bool{
		"127.0.0.1:1":                true,
		"localhost:1":                true,
		"[::1]:1":                    true,
		"unix:/run/evald.sock":       true,
		"dns:///localhost:1":         true,
		"ipv4:127.0.0.1:1":           true,
		"localhost.example.org:1":    false,
		"127.0.0.1.example.org:1":    false,
		"dns://8.8.8.8/evald:1":      false,
		"dns://8.8.8.8/localhost:1":  false,
		"ipv4:127.0.0.1:1,8.8.8.8:1": false,
		"0.0.0.0:1":                  false,
		"xds:///localhost:1":         false,
		"passthrough:///10.0.0.7:1":  false,
		"evald":                      false,
	}
	for target, want := range cases {
		if got := isThisMachine(target); got != want {
			t.Errorf("%s: got %v, wanted %v", target, got, want)
		}
	}
}

func TestATokenGoesToAnotherMachineEncryptedOnly(t *testing.T) {
	t.Setenv("EVALD_TOKEN", "canary-token")
	if _, err := DialOptions("evald.example.org:50051"); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v, wanted an error without the token", err)
	}
	for _, server := range []string{"127.0.0.1:50051", "evald.example.org:50051"} {
		if _, err := DialOptions(server); (err == nil) != (server == "127.0.0.1:50051") {
			t.Errorf("%s: got %v", server, err)
		}
	}
	t.Setenv("EVALD_TLS", "1")
	if _, err := DialOptions("evald.example.org:50051"); err != nil {
		t.Error(err)
	}
}

func TestAFileOfATokenIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{"one\n": "Bearer one", "two": "Bearer two", "a b": "", "": ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := token{file: file}.GetRequestMetadata(context.Background())
		if got["authorization"] != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %v, %v, wanted %q", text, got, err, want)
		}
	}
}

func TestWhatContradictsItselfIsRefused(t *testing.T) {
	cases := []map[string]string{
		{"EVALD_TLS": "maybe"},
		{"EVALD_CERT_FILE": "a"},
		{"EVALD_CA_FILE": "/nowhere"},
		{"EVALD_CA_FILE": "access_test.go"},
		{"EVALD_TOKEN": "a", "EVALD_TOKEN_FILE": "b"},
	}
	for _, environment := range cases {
		t.Run("", func(t *testing.T) {
			for name, value := range environment {
				t.Setenv(name, value)
			}
			if options, err := DialOptions("127.0.0.1:1"); err == nil {
				t.Errorf("%v: got %v, wanted an error", environment, options)
			}
		})
	}
	t.Setenv("EVALD_TLS_CLIENT_CA_FILE", "a")
	if options, err := ServerOptions(); err == nil {
		t.Errorf("got %v, wanted an error", options)
	}
}
