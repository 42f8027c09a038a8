//! Each command line, run three ways at once: what it printed, how it ended, and what it left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use kube::Client;

use super::lines::{FILES, Line, read};
use super::ways::{Setting, Way};
use super::{answers, normal, objects, tools};
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::wait::try_eventually;

/// Environment variable that asks for the whole table.
const SHOW_TABLE: &str = "KUBESVC_TRANSPARENCY_TABLE";
/// Time limit for controllers to bring all ways to the same objects.
const OBJECTS_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of times that a line is run which only reads and differs: controllers may be at work on what it reads, in
/// one namespace before the other.
const MAX_READS: usize = 3;
/// Number of differing lines that are shown.
const MAX_SHOWN: usize = 12;

/// What came of a line.
enum Verdict {
    Equal,
    /// It differs, for the reason that the table has.
    Differs(String),
    Problem(String),
}

struct Row {
    shown: String,
    code: Option<i32>,
    took: Duration,
    verdict: Verdict,
}

#[tokio::test(flavor = "multi_thread")]
async fn command_lines_have_the_same_results_and_leave_the_same_objects_through_both_doors() {
    let setting = Setting::start().await;
    let client = setting.place.target.client().await;
    let (began, mut rows) = (Instant::now(), Vec::new());
    let (mut answers, mut objects_timeout) = ((0, String::new()), OBJECTS_TIMEOUT);
    for file in FILES {
        for line in read::<Vec<Line>>(file) {
            rows.push(compare(&setting, &client, &line, &mut objects_timeout).await);
        }
        if file == FILES[1] {
            answers = answers::differences(&setting).await;
        }
    }
    if std::env::var_os(SHOW_TABLE).is_some() {
        eprintln!("{}{} requests in other forms", table(&rows, began.elapsed()), answers.0);
    }
    tools::check(&setting).await;
    rows.retain(|row| matches!(row.verdict, Verdict::Problem(_)));
    assert!(rows.is_empty(), "{}", table(&rows, began.elapsed()));
    assert!(answers.1.is_empty(), "requests in other forms, differing without a reason:\n{}", answers.1);
}

async fn compare(setting: &Setting, client: &Client, line: &Line, objects_timeout: &mut Duration) -> Row {
    let began = Instant::now();
    let [own, first, second] = &setting.ways;
    let mut reads = 0;
    let (code, mut verdict) = loop {
        let (at_itself, one, two) = tokio::join!(own.run(line), first.run(line), second.run(line));
        let code = at_itself.as_ref().ok().and_then(|output| output.code);
        let verdict = judge(line, (own, at_itself), [(first, one), (second, two)]);
        reads += 1;
        if !line.only_reads() || reads == MAX_READS || !matches!(verdict, Verdict::Problem(_)) {
            break (code, verdict);
        }
    };
    if line.writes()
        && line.differs.is_none()
        && let Err(why) = same_objects(client, &setting.ways, *objects_timeout).await
    {
        let said = if let Verdict::Problem(said) = verdict { said } else { String::new() };
        verdict = Verdict::Problem(format!("{said}{why}"));
        // They stay different, and every further line would wait.
        *objects_timeout = Duration::from_secs(2);
    }
    Row { shown: line.shown(), code, took: began.elapsed(), verdict }
}

type Ran<'w> = (&'w Way, Result<Output, String>);

fn judge(line: &Line, own: Ran<'_>, doors: [Ran<'_>; 2]) -> Verdict {
    let expected = match own.1 {
        Ok(output) if output.code == Some(line.code) => normal_output(line, own.0, &output),
        Ok(output) => return Verdict::Problem(format!("at the cluster itself: {output:?}\n")),
        Err(error) => return Verdict::Problem(format!("at the cluster itself: {error}\n")),
    };
    let mut problems = String::new();
    for (way, ran) in doors {
        let door = way.door.expect("the other ways are doors");
        let found = match &ran {
            Ok(output) => normal_output(line, way, output),
            Err(error) => error.clone(),
        };
        match (found == expected, line.may_differ(door)) {
            (true, false) | (false, true) => {}
            (true, true) => problems += &format!("{door:?}: it differs no longer; take the reason away\n"),
            (false, false) => problems += &format!("{door:?}:\n{}", differing(&expected, &found)),
        }
    }
    match &line.differs {
        _ if !problems.is_empty() => Verdict::Problem(problems),
        Some(difference) => Verdict::Differs(format!("{:?}: {}", difference.ways, difference.reason)),
        None => Verdict::Equal,
    }
}

fn normal_output(line: &Line, way: &Way, output: &Output) -> String {
    let Output { code, stdout, stderr } = output;
    let (mut stdout, stderr) = (normal::text(way, stdout), normal::text(way, stderr));
    if line.any_order {
        let mut lines: Vec<_> = stdout.lines().collect();
        lines.sort_unstable();
        stdout = lines.join("\n");
    }
    format!("exit code {code:?}\n{stdout}\nstandard error:\n{stderr}")
}

/// The lines of which only one text has.
fn differing(expected: &str, found: &str) -> String {
    let mut shown = String::new();
    let (left, right): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let mut add = |sign: char, lines: &[&str], others: &[&str]| {
        for line in lines.iter().filter(|line| !others.contains(line)).take(MAX_SHOWN) {
            let line: String = line.chars().take(400).collect();
            let _ = writeln!(shown, "    {sign} {line}");
        }
    };
    add('-', &left, &right);
    add('+', &right, &left);
    if shown.is_empty() { "    the same lines in another order\n".to_owned() } else { shown }
}

async fn same_objects(client: &Client, ways: &[Way; 3], timeout: Duration) -> Result<(), String> {
    try_eventually("the same objects", timeout, async || {
        let [own, first, second] = ways.each_ref().map(|way| objects::left_by(client, way));
        let (own, first, second) = tokio::join!(own, first, second);
        let own = own?;
        for (way, found) in ways.iter().skip(1).zip([first?, second?]) {
            if found != own {
                return Err(format!("objects, {:?}:\n{}", way.door, differing(&text(&own), &text(&found))));
            }
        }
        Ok(())
    })
    .await
}

fn text(objects: &BTreeMap<String, Vec<String>>) -> String {
    let resources = objects.iter().flat_map(|(path, objects)| std::iter::once(path).chain(objects));
    resources.map(String::as_str).collect::<Vec<_>>().join("\n")
}

fn table(rows: &[Row], took: Duration) -> String {
    let mut table = String::new();
    let mut counts = [0; 3];
    for Row { shown, code, took, verdict } in rows {
        let (which, word, why) = match verdict {
            Verdict::Equal => (0, "equal", String::new()),
            Verdict::Differs(reason) => (1, "differs", format!("    {reason}\n")),
            Verdict::Problem(why) => (2, "PROBLEM", why.clone()),
        };
        counts[which] += 1;
        let code = code.map_or_else(|| "-".to_owned(), |code| code.to_string());
        let _ = writeln!(table, "{word:8} {code:>2} {:5} ms  {shown}", took.as_millis());
        table += &why;
    }
    let [equal, differ, problems] = counts;
    let total = rows.len();
    let _ = writeln!(
        table,
        "{total} command lines in {:.0} s: {equal} equal, {differ} differ for a reason, {problems} problems",
        took.as_secs_f64()
    );
    table
}

#[test]
fn the_table_shows_what_differs() {
    assert_eq!(differing("a\nb\n", "a\nc\n"), "    - b\n    + c\n");
    assert!(differing("a\nb", "b\na").contains("order"));
}
