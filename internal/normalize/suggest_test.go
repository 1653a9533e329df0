package normalize

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"

	"validator-gw/internal/verdict"
)

func TestSuggestion(t *testing.T) {
	t.Parallel()
	l := mustLists(t, Own{})
	const typo, mixed, percent = verdict.TypoDomain, verdict.MixedScript, verdict.PercentEncoded
	for _, tc := range []struct {
		row, in string
		want    string // the whole address, or the domain for ana@ alone; empty for none
		reason  verdict.Reason
	}{
		// What other libraries get wrong.
		{"71: swapped", "gmial.com", "gmail.com", typo},
		{"71: swapped, above ten characters", "hotmial.com", "hotmail.com", typo},
		{"71: left out", "yaho.com", "yahoo.com", typo},
		{"71: the end cut", "hotmail.co", "hotmail.com", typo},
		{"72", "email.com", "", ""},
		{"72", "hey.com", "", ""},
		{"72", "pm.me", "", ""},
		{"72", "proton.me", "", ""},
		{"72: a company", "acme.co", "", ""},
		{"72: a company", "startup.io", "", ""},
		{"72: a company", "mask.io", "", ""},
		{"72: national", "yahoo.com.mx", "", ""},
		{"72: national", "hotmail.com.br", "", ""},
		{"72", "cox.com", "", ""},
		{"72", "bt.com", "", ""},

		// One edit.
		{"71: left out", "gmai.com", "gmail.com", typo},
		{"71: left out", "gmal.com", "gmail.com", typo},
		{"71: doubled", "gmaill.com", "gmail.com", typo},
		{"71: doubled", "ggmail.com", "gmail.com", typo},
		{"71: replaced", "gnail.com", "gmail.com", typo},
		{"71: swapped at the first letter", "mgail.com", "gmail.com", typo},
		{"71: first letter left out", "otmail.com", "hotmail.com", typo},
		{"71: first letter from the key beside", "fmail.com", "gmail.com", typo},
		{"71: first letter from far away", "zmail.com", "", ""},
		{"71: another first letter before it", "xgmail.com", "", ""},
		{"71: end", "gmail.co", "gmail.com", typo},
		{"71: end", "gmail.cm", "gmail.com", typo},
		{"71: end", "outlook.om", "outlook.com", typo},
		{"71: end of a short name", "aol.co", "aol.com", typo},
		{"71: dot inside", "gma.il.com", "gmail.com", typo},
		{"71: dot inside the end", "gmail.c.om", "gmail.com", typo},
		{"71: dot late", "gmailc.om", "gmail.com", typo},
		{"71: national", "yhoo.co.uk", "yahoo.co.uk", typo},
		{"71: national, end", "yahoo.c.uk", "yahoo.co.uk", typo},
		{"71: national, end", "yahoo.co.br", "yahoo.com.br", typo},
		{"71: national", "hotmal.fr", "hotmail.fr", typo},
		{"71", "iclould.com", "icloud.com", typo},
		{"71", "comcat.net", "comcast.net", typo},
		{"71", "protonmial.com", "protonmail.com", typo},
		{"71", "orangee.fr", "orange.fr", typo},

		// Two edits, above ten characters.
		{"71: two swaps", "htomial.com", "hotmail.com", typo},
		{"71: swapped, and the end cut", "hotmial.co", "hotmail.com", typo},
		{"71: a letter and a swap", "hormial.com", "hotmail.com", typo},
		{"71: two edits in nine characters", "gmial.co", "", ""},
		{"71: two other letters are another name", "hotmaxx.com", "", ""},
		{"71: the first letter and one more", "jotmial.com", "", ""},
		{"71: three edits", "htomila.co", "", ""},

		{"72: another country", "orange.fi", "", ""},
		{"72: another country", "libero.at", "", ""},

		// The nearest, and among those the most used.
		{"71: gmail.com, not ymail.com", "gymail.com", "gmail.com", typo},
		{"71: yahoo.com, not yahoo.co.uk", "yahoo.co", "yahoo.com", typo},

		// In other letters.
		{"60: Cyrillic a", "gmаil.com", "gmail.com", mixed},
		{"60: Cyrillic capital M", "GМAIL.COM", "gmail.com", mixed},
		{"60: Cyrillic o, twice", "yahоо.com", "yahoo.com", mixed},
		{"60: all of it Cyrillic", "уаһоо.com", "yahoo.com", mixed},
		{"60: Greek omicron", "hοtmail.com", "hotmail.com", mixed},
		{"60: Greek upsilon as u", "oυtlook.com", "outlook.com", mixed},
		{"60: Greek capital upsilon as Y", "ΥAHOO.com", "yahoo.com", mixed},
		{"60: a provider that no misspelling leads to", "mаil.bg", "mail.bg", mixed},
		{"60: accents", "gmaíl.com", "gmail.com", typo},
		{"60: dotless i", "gmaıl.com", "gmail.com", typo},
		{"60: no provider's shape", "exаmple.com", "", ""},
		{"60: a word of its own", "пример.com", "", ""},
		{"60: a word of its own", "bücher.com", "", ""},
		{"60: fullwidth is ASCII by UTS 46", "ｇｍａｉｌ.com", "", ""},

		// Percent-encoding.
		{"63", "ana%2Bnews@example.com", "ana+news@example.com", percent},
		{"63: and the domain", "ana%2Bnews@gmial.com", "ana+news@gmail.com", percent},
		{"63: decoded once, not twice", "ana%252Bnews@example.com", "", ""},
		{"63: would be no address", "ana%20lee@example.com", "", ""},
		{"63: would be two", "ana%40example.org@example.com", "", ""},
		{"63: would hold a control", "ana%0alee@example.com", "", ""},
		{"63: no encoding", "100%ana@example.com", "", ""},
		{"63: no encoding", "ana%host@example.com", "", ""},
		{"63: what can't be decoded hinders no domain", "ana%0alee@gmial.com", "ana%0alee@gmail.com", typo},
		{"63: beyond ASCII", "j%C3%BCrgen@example.com", "jürgen@example.com", percent},

		// The local part stays.
		{"71: local part", "a.b+c'd@gmial.com", "a.b+c'd@gmail.com", typo},
		{"71: capitals", "Ana@GMIAL.com", "ana@gmail.com", typo},
		{"71: local part beyond ASCII", "jürgen@gmial.com", "jürgen@gmail.com", typo},
		// What is known of a parent holds.
		{"72: below a provider", "mail.gmail.com", "", ""},
		{"72: below a misspelt provider", "mail.gmial.com", "", ""},
	} {
		in, want := tc.in, tc.want
		if !strings.Contains(in, "@") {
			in = "ana@" + in
		}
		if want != "" && !strings.Contains(want, "@") {
			want = "ana@" + want
		}
		a := mustParse(t, in)
		h := l.Look(a)
		if h.Suggestion != want || h.SuggestionReason != tc.reason {
			t.Errorf("row %s: Look(%q) suggests %q, %q; want %q, %q", tc.row, in, h.Suggestion, h.SuggestionReason, want, tc.reason)
		}
	}
}

// TestTypoBeforeDisposable: the list of disposable domains has misspellings, too.
func TestTypoBeforeDisposable(t *testing.T) {
	t.Parallel()
	l := mustLists(t, Own{})
	misspelt := []string{"gmial.com", "hotmai.com", "hotmial.com"}
	for _, domain := range misspelt {
		if !disposableList.has(domain) {
			t.Errorf("%s is not in the list: the test has lost its point", domain)
		}
		h := l.Look(mustParse(t, "ana@"+domain))
		if h.Suggestion == "" || h.Flags.Disposable != verdict.Unknown || h.Disposable != (ListRef{}) {
			t.Errorf("Look(ana@%s) = %+v, want a suggestion and nothing of disposable", domain, h)
		}
	}
	// All others are disposable, however near: yopmail.com is two edits from hotmail.com, gotmail.com one.
	for _, domain := range disposableList.names() {
		if h := l.Look(mustParse(t, "ana@"+domain)); !slices.Contains(misspelt, domain) && (h.Flags.Disposable != verdict.True || h.Suggestion != "") {
			t.Errorf("Look(ana@%s) = %+v, want disposable", domain, h)
		}
	}
}

// silent are domains of real providers, companies and public bodies, for which nothing may be suggested.
var silent = strings.Fields(`
	gmail.com googlemail.com yahoo.com ymail.com rocketmail.com myyahoo.com hotmail.com outlook.com live.com msn.com windowslive.com
	icloud.com me.com mac.com aol.com aim.com proton.me protonmail.com protonmail.ch pm.me tuta.com tutanota.com tutanota.de
	mail.com email.com usa.com hey.com hushmail.com fastmail.com fastmail.fm zoho.com zohomail.com zoho.eu posteo.de mailbox.org
	startmail.com mailfence.com runbox.com riseup.net disroot.org inbox.com inbox.lv inbox.ru lycos.com excite.com juno.com
	yahoo.co.uk yahoo.fr yahoo.de yahoo.it yahoo.es yahoo.ca yahoo.in yahoo.co.in yahoo.co.id yahoo.co.jp yahoo.co.kr yahoo.co.nz
	yahoo.co.th yahoo.co.za yahoo.com.ar yahoo.com.au yahoo.com.br yahoo.com.cn yahoo.com.co yahoo.com.hk yahoo.com.mx yahoo.com.my
	yahoo.com.pe yahoo.com.ph yahoo.com.sg yahoo.com.tr yahoo.com.tw yahoo.com.ve yahoo.com.vn yahoo.at yahoo.be yahoo.ch yahoo.cl
	yahoo.cz yahoo.dk yahoo.fi yahoo.gr yahoo.hu yahoo.ie yahoo.nl yahoo.no yahoo.pl yahoo.pt yahoo.ro yahoo.se yahoo.jp
	hotmail.co.uk hotmail.fr hotmail.de hotmail.it hotmail.es hotmail.ca hotmail.be hotmail.nl hotmail.se hotmail.ch hotmail.no
	hotmail.dk hotmail.fi hotmail.gr hotmail.co.jp hotmail.co.th hotmail.co.nz hotmail.co.za hotmail.com.ar hotmail.com.au
	hotmail.com.br hotmail.com.tr hotmail.com.tw hotmail.com.hk hotmail.cl hotmail.cz hotmail.hu hotmail.my hotmail.ph
	outlook.fr outlook.de outlook.it outlook.es outlook.pt outlook.be outlook.dk outlook.ie outlook.jp outlook.kr outlook.in
	outlook.sg outlook.cl outlook.cz outlook.com.au outlook.com.br outlook.com.ar outlook.com.tr outlook.co.th outlook.co.id outlook.sa
	live.fr live.de live.it live.nl live.be live.se live.no live.dk live.ca live.cn live.jp live.co.uk live.com.au live.com.mx
	live.com.pt live.com.ar live.ie live.in live.ru live.at live.cl
	gmx.de gmx.net gmx.com gmx.at gmx.ch gmx.fr gmx.co.uk web.de t-online.de freenet.de arcor.de online.de 1und1.de vodafone.de
	orange.fr wanadoo.fr free.fr sfr.fr neuf.fr laposte.net bbox.fr libero.it virgilio.it tin.it alice.it tiscali.it tim.it
	mail.ru bk.ru list.ru rambler.ru yandex.ru yandex.com yandex.by yandex.kz ya.ru ukr.net i.ua meta.ua tut.by
	qq.com foxmail.com 163.com 126.com 139.com 188.com yeah.net sina.com sina.cn sohu.com naver.com daum.net hanmail.net nate.com
	docomo.ne.jp ezweb.ne.jp softbank.ne.jp i.softbank.jp au.com nifty.com rediffmail.com rediff.com
	comcast.net xfinity.com att.net sbcglobal.net bellsouth.net verizon.net cox.net charter.net spectrum.net earthlink.net optonline.net
	btinternet.com bt.com sky.com virginmedia.com virgin.net blueyonder.co.uk ntlworld.com talktalk.net plusnet.com o2.co.uk
	bigpond.com optusnet.com.au iinet.net.au xtra.co.nz shaw.ca rogers.com sympatico.ca bell.net telus.net videotron.ca
	telenet.be skynet.be proximus.be ziggo.nl kpnmail.nl planet.nl home.nl hetnet.nl xs4all.nl bluewin.ch telia.com online.no mail.dk
	seznam.cz email.cz centrum.cz wp.pl o2.pl onet.pl interia.pl op.pl abv.bg mail.bg uol.com.br bol.com.br terra.com.br ig.com.br
	globo.com sapo.pt terra.es telefonica.net prodigy.net.mx freemail.hu walla.co.il mynet.com
	duck.com mozmail.com privaterelay.appleid.com simplelogin.com anonaddy.com addy.io passmail.net

	acme.co startup.io mask.io cox.com att.com verizon.com charter.com comcast.com xfinity.net spectrum.com orange.com orange.es
	google.com apple.com microsoft.com amazon.com meta.com yahooinc.com yahoo-inc.com yandex-team.ru navercorp.com zohocorp.com
	cloud.com mcloud.com photon.com photon.me proton.com protonvpn.com outback.com outloud.com lookout.com hotwire.com hotmart.com
	hotair.com hotjar.com hotels.com hootsuite.com horizon.net laporte.net liberal.it libera.it libri.it naver.jp never.com navel.com
	saver.com nader.com raver.com grail.com gail.com gmac.com gml.com gmat.com mail.co ao.com aon.com sol.com line.com love.com life.com
	five.com hive.com olive.com alive.com lives.com mine.com aols.com mmc.com mac.org ms.com msc.com msi.com nsn.com man.com me.org
	mercedes-benz.com bmw.de siemens.com sap.com bosch.com basf.com bayer.com allianz.de telekom.de t-mobile.de t-systems.com
	bbc.co.uk gov.uk nhs.net ox.ac.uk cam.ac.uk mit.edu stanford.edu harvard.edu nasa.gov irs.gov europa.eu un.org who.int
	shell.com bp.com hp.com ibm.com dell.com intel.com amd.com nvidia.com oracle.com cisco.com sony.com toyota.jp honda.com
	tesla.com ford.com gm.com ge.com gs.com jpmorgan.com citi.com hsbc.com ubs.com axa.fr bnpparibas.com sncf.fr edf.fr free.org
	range.fr grange.fr change.fr gmbh.de webs.de wed.de web.com webb.com netz.de weber.de green.net freenet.org freenet.am
	greenet.de index.ru gambler.ru tambler.com seznam.sk telenet.com skynet.com planet.com home.com virgin.com rocket.com
	rocketman.com rocketlab.com pocketmail.com foxtail.com fastly.com fastmark.com mailchimp.com mailgun.com mailjet.com zendesk.com
	zoo.com soho.com zono.com gogle.net gravatar.com gitlab.com github.com x.com t.co a.co g.co fb.com vk.com ok.ru
	basecamp.com slack.com zoom.us dropbox.com box.com notion.so figma.com canva.com stripe.com square.com paypal.com wise.com n26.com
	bigfoot.com bigpoint.com bigcommerce.com bigbasket.com earthlight.com earthling.net windows.com`)

func TestSilent(t *testing.T) {
	t.Parallel()
	if len(silent) < 400 {
		t.Fatalf("%d domains", len(silent))
	}
	l := mustLists(t, Own{})
	for _, domain := range silent {
		if h := l.Look(mustParse(t, "ana@"+domain)); h.Suggestion != "" || h.Flags.Disposable == verdict.True {
			t.Errorf("Look(ana@%s) = %+v, want no suggestion", domain, h)
		}
	}
	for _, list := range []list{freeList, protectedList, aliasesList, knownList} {
		for _, domain := range list.names() {
			if h := l.Look(mustParse(t, "ana@"+domain)); h.Suggestion != "" {
				t.Errorf("Look(ana@%s) = %+v, want no suggestion", domain, h)
			}
		}
	}
}

// TestEveryOneEditOfGmail says for each kind of edit what comes of it, for the name that is typed most.
func TestEveryOneEditOfGmail(t *testing.T) {
	t.Parallel()
	l := mustLists(t, Own{})
	check := func(name string) {
		if name == "gmail" || name[0] == '-' || name[len(name)-1] == '-' {
			return
		}
		a := mustParse(t, "ana@"+name+".com")
		_, _, known := lookup(a.Domain())
		known = known || freeList.has(a.Domain()) || a.Domain() != "gmial.com" && disposableList.has(a.Domain())
		first := name[0] == 'g' || name == "mail" || name == "mgail" || len(name) == 5 && (name[0] == 'f' || name[0] == 'h') && name[1:] == "mail"
		want := ""
		if !known && first {
			want = "ana@gmail.com"
		}
		if got := l.Look(a).Suggestion; got != want {
			t.Errorf("%s.com: suggests %q, want %q", name, got, want)
		}
	}
	const name = "gmail"
	for i := range len(name) + 1 {
		for _, c := range "abcdefghijklmnopqrstuvwxyz0123456789-" {
			check(name[:i] + string(c) + name[i:])
			if i < len(name) {
				check(name[:i] + string(c) + name[i+1:])
			}
		}
		if i < len(name) {
			check(name[:i] + name[i+1:])
		}
		if i > 0 && i < len(name) {
			check(name[:i-1] + name[i:i+1] + name[i-1:i] + name[i+1:])
		}
	}
}

// TestRank: who is as near comes by rank, who is nearer before that.
func TestRank(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ list, in, want string }{
		{"# x 1 2 x\nmostused.com 2\nmostusee.com 2\n", "mostusef.com", "mostused.com"},
		{"# x 1 2 x\nmostusee.com 2\nmostused.com 2\n", "mostusef.com", "mostusee.com"},
		{"# x 1 2 x\nmostused.com 2\nmostusingg.com 2\n", "mostusing.com", "mostusingg.com"},
		{"# x 1 2 x\nmostused.com 0\nmostusee.com 1\n", "mostusef.com", "mostusee.com"},
	} {
		if got, _ := mustRank(mustRead(tc.list)).closest(tc.in); got == nil || got.domain != tc.want {
			t.Errorf("closest to %s of %q = %+v, want %s", tc.in, tc.list, got, tc.want)
		}
	}
}

func TestCompleteDomain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"gmail", "gmail.com"}, {"gmailcom", "gmail.com"}, {"yahoo", "yahoo.com"}, {"yahoocouk", "yahoo.co.uk"}, {"outlook", "outlook.com"},
		{"gmxde", "gmx.de"}, {"webde", "web.de"}, {"aol", "aol.com"}, {"icloud", "icloud.com"},
		{"gmial", "gmail.com"}, {"gmailcon", "gmail.com"}, {"hotmial", "hotmail.com"}, {"hotmailco", "hotmail.com"},
		{"mail", ""}, {"free", ""}, {"localhost", ""}, {"intranet", ""}, {"exchange", ""}, {"web", ""}, {"", ""}, {"a", ""},
		{"com", ""}, {"email", ""}, {"xn--bcher-kva", ""}, {strings.Repeat("gmail", 1000), ""}, {"\x00\xff", ""},
	} {
		if got := completeDomain(tc.in); got != tc.want {
			t.Errorf("completeDomain(%.30q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestRepairTLD(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		// What other libraries get wrong.
		{"yahoo.con", "yahoo.com"},
		{"con-artists.con", "con-artists.com"},

		{"acme.cmo", "acme.com"}, {"acme.comm", "acme.com"}, {"acme.vom", "acme.com"}, {"acme.nte", "acme.net"}, {"acme.ogr", "acme.org"},
		{"mail.acme.con", "mail.acme.com"}, {"harvard.eud", "harvard.edu"},
		{"xn--bcher-kva.con", "xn--bcher-kva.com"},
		{"web.ed", "web.de"}, {"orange.rf", "orange.fr"}, {"t-online.dee", "t-online.de"}, {"proton.mee", "proton.me"},
		{"yahoo.co.ukk", "yahoo.co.uk"}, {"hotmail.couk", "hotmail.co.uk"},
		{"gmai.lcom", "gmail.com"},
		// Both faults at once.
		{"gmial.con", "gmail.com"}, {"hotmial.ocm", "hotmail.com"}, {"email.con", "email.com"}, {"gail.con", "gail.com"},
		{"gmail.xn--m-0tbi", "gmail.com"}, // com in Cyrillic letters but for the m

		{"acme.or", "acme.org"}, {"acme.goc", "acme.gov"},
		// Other countries' governments, without the country behind it.
		{"mofa.go", ""}, {"sat.gob", ""}, {"interieur.gouv", ""}, {"health.govt", ""}, {"bmi.gv", ""},

		{"bank.lan", ""}, {"mail.corp", ""}, {"live.home", ""}, {"nas.internal", ""}, {"x.intranet", ""}, {"printer.localdomain", ""},
		{"acme.zzz", ""}, {"acme.zz", ""}, {"acme.wahtever", ""}, {"con", ""}, {".con", ""}, {"", ""}, {"acme.", ""},
		{strings.Repeat("a.", 100_000) + "con", strings.Repeat("a.", 100_000) + "com"},
	} {
		got := repairTLD(tc.in)
		if got != tc.want {
			t.Errorf("repairTLD(%.30q) = %.30q, want %.30q", tc.in, got, tc.want)
		}
		if suffix, icann := publicsuffix.PublicSuffix(got); got != "" && !icann {
			t.Errorf("repairTLD(%.30q) = %.30q, whose suffix %.30q is unknown", tc.in, got, suffix)
		}
	}
}
