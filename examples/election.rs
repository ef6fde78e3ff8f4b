//! Three processes campaign in one election. The first leader is killed, the second resigns: each time another takes
//! over, with a token above the last.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;

/// Campaigns until its standard input ends, and then resigns.
fn node(id: &str, file: &Path) -> Result<(), Box<dyn Error>> {
    let client = leasehold::sqlite::builder(file).connect()?;
    let election = client
        .election("scheduler")
        .id(id)
        .lease(Duration::from_secs(3))
        .on_won(|token| println!("{token}"))
        .build()?;
    election.run()?;
    std::io::stdin().read_line(&mut String::new())?;
    match election.stop() {
        // The term was lost before, so nothing is left to resign: this is a clean end, too.
        Err(error) if error.kind() == ErrorKind::Lost => Ok(()),
        stopped => Ok(stopped?),
    }
}

/// Starts a node; the tokens of its terms come with its number.
fn start(number: usize, file: &Path, won: mpsc::Sender<(usize, u64)>) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(format!("node-{number}"))
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("stdout is piped")?).lines();
    std::thread::spawn(move || {
        for token in lines.map_while(Result::ok).filter_map(|line| line.parse().ok()) {
            let _ = won.send((number, token));
        }
    });
    Ok(child)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    if let (Some(id), Some(file)) = (args.next(), args.next()) {
        return node(&id.to_string_lossy(), &PathBuf::from(file));
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("locks.db");
    let (told, won) = mpsc::channel();
    let mut nodes: Vec<Child> = (0..3).map(|number| start(number, &file, told.clone())).collect::<Result<_, _>>()?;
    let patience = Duration::from_secs(30);

    let (first, token) = won.recv_timeout(patience)?;
    println!("term {token}: node-{first} leads");

    nodes[first].kill()?;
    let killed = Instant::now();
    let (second, after_kill) = won.recv_timeout(patience)?;
    println!("term {after_kill}: node-{second} leads, {:.1?} after node-{first} was killed", killed.elapsed());

    // A process that does not campaign can look, too.
    let watcher = leasehold::sqlite::builder(&file).connect()?.election("scheduler").build()?;
    let leader = watcher.leader()?.ok_or("nobody leads")?;
    println!("the store says: {} with token {}", leader.id(), leader.fencing_token());

    drop(nodes[second].stdin.take());
    let resigns = Instant::now();
    let (third, after_resignation) = won.recv_timeout(patience)?;
    println!("term {after_resignation}: node-{third} leads, {:.1?} after node-{second} resigned", resigns.elapsed());

    drop(nodes[third].stdin.take());
    for node in &mut nodes {
        node.wait()?;
    }
    assert!(token < after_kill && after_kill < after_resignation);
    assert!(first != second && second != third && third != first);
    assert_eq!((leader.id(), leader.fencing_token()), (format!("node-{second}").as_str(), after_kill));
    assert_eq!(watcher.leader()?, None);
    println!("proof: three terms of three nodes, over a kill and a resignation, and each token above the last");
    Ok(())
}
